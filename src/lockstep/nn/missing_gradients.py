"""Parameters without a gradient: which ones, and on which ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from lockstep.errors import BadInput
from lockstep.torch_compat.distributed import all_gather_single

PRESENT, MISSING, NO_DATA = range(3)
"""What a rank says of a parameter: it has a gradient; it has none; the rank has no more data."""
MAX_NAMES = 8
"""Parameters that an error names."""


class MissingGradients:
    """Gathers which gradients are missing on which ranks, once a rank has flagged a bucket."""

    def __init__(self, names: Sequence[str], group: dist.ProcessGroup, device: torch.device, *, allowed: bool) -> None:
        self._names, self._group, self._device = names, group, device
        self.allowed = allowed
        """Whether a missing gradient counts as zero instead of being an error on every rank."""

    def agree(self, missing: list[int] | None) -> set[int]:
        """Return those of this rank's missing gradients that other ranks have; a collective call.

        None means that this rank has no more data.
        """
        row = torch.full((len(self._names),), PRESENT if missing is not None else NO_DATA, dtype=torch.uint8)
        row[missing or []] = MISSING
        table = torch.empty(self._group.size() * len(row), dtype=torch.uint8, device=self._device)
        all_gather_single(table, row.to(self._device), group=self._group)
        rows = table.view(-1, len(row)).tolist()
        if not self.allowed:
            raise BadInput(describe(self._names, rows, dist.get_process_group_ranks(self._group)))
        return {index for index in missing or [] if any(other[index] == PRESENT for other in rows)}


def describe(names: Sequence[str], rows: Sequence[Sequence[int]], ranks: Sequence[int]) -> str:
    """Return an error message that names the parameters without a gradient, and the ranks."""
    problems = []
    for index, name in enumerate(names):
        without = [rank for rank, row in zip(ranks, rows, strict=True) if row[index] == MISSING]
        if without:
            every = len(without) == sum(row[index] != NO_DATA for row in rows)
            where = "every rank" if every else f"rank {', '.join(map(str, without))}"
            problems.append(f"{name} ({where})")
    more = f" and {len(problems) - MAX_NAMES} more" if len(problems) > MAX_NAMES else ""
    verb = "parameter got" if len(problems) == 1 else "parameters got"
    return (
        f"{len(problems)} {verb} no gradient in this backward: {', '.join(problems[:MAX_NAMES])}{more}. "
        "The loss must depend on every parameter on every rank. Freeze unused parameters with requires_grad_(False) "
        "before wrapping the model, or pass find_unused_parameters=True, which counts a missing gradient as zero. With "
        "activation checkpointing, use use_reentrant=False"
    )
