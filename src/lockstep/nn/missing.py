"""Parameters without a gradient: which, and on which ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from lockstep.comm.broadcast import all_gather_single
from lockstep.errors import BadInput

GOT, MISSED, ABSENT = range(3)
"""A rank's word on a parameter: it has a gradient; it has none; the rank has run out of data."""
SHOWN = 8


class Missing:
    """What ranks tell each other once one of them has flagged a bucket. A collective call."""

    def __init__(self, names: Sequence[str], group: dist.ProcessGroup, device: torch.device, *, allowed: bool) -> None:
        self._names, self._group, self._device = names, group, device
        self.allowed = allowed
        """Whether a missing gradient counts as zero; else it is an error on every rank."""

    def agree(self, missed: list[int] | None) -> set[int]:
        """Return those of the missing gradients that other ranks have; None: this rank has run out of data."""
        row = torch.full((len(self._names),), GOT if missed is not None else ABSENT, dtype=torch.uint8)
        row[missed or []] = MISSED
        table = torch.empty(self._group.size() * len(row), dtype=torch.uint8, device=self._device)
        all_gather_single(table, row.to(self._device), group=self._group)
        rows = table.view(-1, len(row)).tolist()
        if not self.allowed:
            raise BadInput(describe(self._names, rows, dist.get_process_group_ranks(self._group)))
        return {index for index in missed or [] if any(other[index] == GOT for other in rows)}


def describe(names: Sequence[str], rows: Sequence[Sequence[int]], ranks: Sequence[int]) -> str:
    """Return an error that names the parameters without a gradient, and the ranks."""
    found = []
    for index, name in enumerate(names):
        without = [rank for rank, row in zip(ranks, rows, strict=True) if row[index] == MISSED]
        if without:
            every = len(without) == sum(row[index] != ABSENT for row in rows)
            where = "every rank" if every else f"rank {', '.join(map(str, without))}"
            found.append(f"{name} ({where})")
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    verb = "parameter got" if len(found) == 1 else "parameters got"
    return (
        f"{len(found)} {verb} no gradient in this backward: {', '.join(found[:SHOWN])}{more}. The loss must depend on "
        "every parameter on every rank. Freeze what is not used with requires_grad_(False) before wrapping; or pass "
        "find_unused_parameters=True, which counts a missing gradient as zero. With a re-entrant checkpoint, use "
        "use_reentrant=False"
    )
