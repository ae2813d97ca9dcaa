"""Names of hosts that are network namespaces."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lockstep.bench.ranks.namespaces import NamespaceHost


@contextmanager
def names_for(made: Sequence[NamespaceHost]) -> Iterator[str]:
    """Give the first host a name that is a loopback address for itself, as many systems do; yield the name."""
    folders = [Path("/etc/netns") / host.name for host in made]
    try:
        for number, folder in enumerate(folders):
            folder.mkdir(parents=True)
            address = made[0].address if number else "127.0.1.1"
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} head\n")
        yield "head"
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
