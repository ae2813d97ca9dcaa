"""Fingerprints of the weights at a few steps, so that two runs can be told apart: at which step, in which tensor.

Above LARGE bytes only the hash is taken. The file is described in `schema/fingerprints_jsonl.py`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.state.hashes import summaries
from lockstep.state.holdings import model_only
from lockstep.state.table import agree
from lockstep.train.records import Lines
from lockstep.train.schema.fingerprints_jsonl import NAME, Fingerprint, FingerprintLine, is_fingerprint_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstep.comm.group import Group
    from lockstep.state.holdings import Holding

LARGE = 64 << 20
"""Bytes of parameters above which means and norms are left out: they would take longer than the hash."""


class Fingerprints:
    """Looks at the weights between two steps; all ranks stand still meanwhile, and it counts as no step's time."""

    def __init__(self, folder: Path, group: Group) -> None:
        self._group = group
        self._lines = Lines(folder / NAME) if group.rank == 0 else None
        self.seconds = 0.0

    def after(self, step: int, holdings: Callable[[], list[Holding]], *, last: bool) -> None:
        """Take the fingerprints if this step is one of those; each holder takes those of what it holds."""
        if not is_fingerprint_step(step, last=last):
            return
        began = time.perf_counter()
        line = fingerprints(self._group, step, model_only(holdings()))
        if self._lines is not None:
            self._lines.write(line)
            if last:
                self._lines.close()
        self._group.barrier()
        self.seconds += time.perf_counter() - began


def fingerprints(group: Group, step: int, holdings: Sequence[Holding]) -> FingerprintLine:
    """Return the fingerprints of parameters and of buffers after a step; all ranks of the group call this together."""
    table = agree(group, holdings)
    parameters = [entry for entry in table.entries if entry.name.startswith("parameter/")]
    small = sum(entry.numel * entry.dtype.itemsize for entry in parameters) <= LARGE
    kinds: dict[str, dict[str, Fingerprint]] = {"parameter": {}, "buffer": {}}
    for name, summary in summaries(group, table, holdings, numbers=small).items():
        kind, _, plain = name.partition("/")
        kinds[kind][plain] = Fingerprint(summary.hash[:16], summary.mean, summary.norm)
    return FingerprintLine(step=step, parameters=kinds["parameter"], buffers=kinds["buffer"])
