"""A step that fails leaves nothing behind that the next one would count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from lockstep import Trainer, World
from lockstep.data.loader import Batch, LaneBatch


class Breaks(torch.autograd.Function):
    """Fails in backward while `armed`."""

    armed = False

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        if Breaks.armed:
            raise RuntimeError("it broke")
        return gradient


class Model(nn.Module):
    """`extra` has its gradient before the other layer's backward can fail, and in the last lane only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.extra = nn.Linear(4, width), nn.Linear(4, width)

    def forward(self, values: Tensor) -> Tensor:
        total = self.first(values)
        if values[0, 0] > 2:
            total = Breaks.apply(total) + self.extra(values)  # type: ignore[no-untyped-call]
        return total.square().sum()  # type: ignore[no-any-return]


def trainer_of(width: int) -> Trainer:
    return Trainer(
        World.alone(threads=1),
        lambda: Model(width),
        lambda parameters: optim.SGD(parameters, lr=1e-3),
        lambda model, batch: model(batch[0]),
        strategy="single",
        lanes=4,
    )


@pytest.mark.parametrize("width", [3, 20_000], ids=["small", "large"])
def test_the_next_step_is_as_if_it_had_not_been(width: int) -> None:
    batch = Batch(0, 0, 4, tuple(LaneBatch(lane, 1, [torch.full((1, 4), float(lane))]) for lane in range(4)))
    untroubled, troubled = trainer_of(width), trainer_of(width)
    untroubled.step(batch)
    Breaks.armed = True
    try:
        with pytest.raises(RuntimeError, match="it broke"):
            troubled.step(batch)
    finally:
        Breaks.armed = False
    troubled.step(batch)
    assert troubled.digest() == untroubled.digest()
