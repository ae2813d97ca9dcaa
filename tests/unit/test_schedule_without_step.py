"""A worker that has nothing to update advances its schedule all the same, and no warning is printed for it."""

from __future__ import annotations

import warnings

from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from lockstep.torch_compat.optimizers import count_as_stepped


def test_a_schedule_advances_without_a_step() -> None:
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    schedule = StepLR(optimizer, 1, gamma=0.5)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        count_as_stepped(optimizer)
        schedule.step()
    assert told == []
    assert optimizer.param_groups[0]["lr"] == 0.5
