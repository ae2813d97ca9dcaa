"""Hosts on one machine: network namespaces joined by wires, each with a rate of its own; gone at the end.

two hosts       a --wire-- b                          several       a --+         each has a network card, an address
                                                                    b --+ switch   and a loopback of its own
                                                                    c --+
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lockstep.errors import BadInput

WIRE = "wire0"
"""What every host calls its end of the wire."""
IPV4, IPV6 = "10.213.77.{}", "fd00:213:77::{}"
BURST_SECONDS = 0.0005
"""How long a wire may send at full speed after a pause: well below what is measured, and above the kernel's clock."""


@dataclass(frozen=True)
class NamespaceHost:
    """One namespace."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return a command that runs there."""
        return ["ip", "netns", "exec", self.name, *words]

    def add_card(self, address: str) -> None:
        """Give it a second network card, which reaches nobody."""
        _ip("-n", self.name, "link", "add", "second0", "type", "veth", "peer", "name", "second1")
        _ip("-n", self.name, "addr", "add", f"{address}/24", "dev", "second0")
        _ip("-n", self.name, "link", "set", "second0", "up")

    def cut_wire(self) -> None:
        """Let nothing in or out any more; nobody is told."""
        _ip("-n", self.name, "link", "set", WIRE, "down")


def unavailable() -> str | None:
    """Return why this machine cannot have such hosts; None if it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"hosts are network namespaces, and {' and '.join(missing)} is not installed: install iproute2"
    if os.geteuid() != 0:
        return "hosts are network namespaces, which only root can make: run it as root"
    name = f"lockstep-{uuid.uuid4().hex[:6]}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=20, check=False)
    if made.returncode:
        return f"hosts are network namespaces, which this machine does not allow ({made.stderr.strip()})"
    _ip("netns", "delete", name)
    return None


@contextmanager
def hosts(count: int = 2, *, gigabits: float | None = None, ipv6: bool = False) -> Iterator[list[NamespaceHost]]:
    """Yield so many hosts that reach each other, and nothing else; `gigabits` a second on each wire, each way."""
    mark = uuid.uuid4().hex[:6]
    form, length = (IPV6, 64) if ipv6 else (IPV4, 24)
    made = [NamespaceHost(f"lockstep-{mark}-{number}", form.format(number + 1)) for number in range(count)]
    switch = f"lockstep-{mark}-switch"
    try:
        for host in made:
            _ip("netns", "add", host.name)
        if count == 2:
            ends = [("netns", host.name, "name", WIRE) for host in made]
            _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        else:
            _switch(switch, [host.name for host in made])
        for host in made:
            _ip("-n", host.name, "addr", "add", f"{host.address}/{length}", "dev", WIRE, *(["nodad"] if ipv6 else []))
            _ip("-n", host.name, "link", "set", WIRE, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
            if gigabits is not None:
                _limit(host.name, gigabits)
        yield made
    finally:
        for name in [*(host.name for host in made), switch]:
            # takes its ends of the wires with it, and so the others
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20, check=False)


def _switch(name: str, ends: Sequence[str]) -> None:
    _ip("netns", "add", name)
    _ip("-n", name, "link", "add", "switch", "type", "bridge")
    _ip("-n", name, "link", "set", "switch", "up")
    for number, end in enumerate(ends):
        _ip("link", "add", "netns", end, "name", WIRE, "type", "veth", "peer", "netns", name, "name", f"port{number}")
        _ip("-n", name, "link", "set", f"port{number}", "master", "switch", "up")


def _limit(name: str, gigabits: float) -> None:
    burst = max(128 << 10, int(gigabits * 1e9 / 8 * BURST_SECONDS))
    rate = f"{gigabits * 1e3:.0f}mbit"
    _run(
        "tc",
        "-n",
        name,
        "qdisc",
        "add",
        "dev",
        WIRE,
        "root",
        "tbf",
        "rate",
        rate,
        "burst",
        f"{burst}b",
        "latency",
        "50ms",
    )


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise BadInput(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
