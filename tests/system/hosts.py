"""Two hosts on one machine: network namespaces joined by a wire, gone when the test is."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.213.77.1", "10.213.77.2")


@contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Yield the names of two namespaces that reach each other at ADDRESSES and reach nothing else."""
    mark = uuid.uuid4().hex[:6]
    names = (f"lockstep-{mark}-a", f"lockstep-{mark}-b")
    wires = (f"ls{mark}a", f"ls{mark}b")
    made = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", wires[0], "type", "veth", "peer", "name", wires[1])
        for name, wire, address in zip(names, wires, ADDRESSES, strict=True):
            _ip("link", "set", wire, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", wire)
            _ip("-n", name, "link", "set", wire, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            _ip("netns", "delete", name)  # takes its end of the wire with it, and so the other


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)
