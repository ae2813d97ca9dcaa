"""The same items, three ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from lockstep.bench.ranks.data.names import BIG, LIST
from lockstep.data.ragged import Ragged  # in every rank of every side, so that importing it is nobody's data


class Items(Dataset[Any]):
    """Items by number, from a big tensor or a list: what people write today, in the faster of the documented ways."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items of a batch; without it a loader asks for each on its own, which takes longer."""
        data = self.data
        return [data[index] for index in indices]


def make(side: str, values: torch.Tensor) -> Any:
    """Return one side's data; each gets memory of its own, so that sharing it moves nobody else's."""
    if side == BIG:
        return Items(values.clone())
    parts = [row.clone() for row in values]
    return Items(parts) if side == LIST else Ragged(parts)
