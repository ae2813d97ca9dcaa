"""`lockstep.once_an_epoch`: a schedule that counts epochs, asked once a step."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD, lr_scheduler

import lockstep
from lockstep.errors import BadInput


def optimizer() -> SGD:
    return SGD([torch.zeros(1)], lr=1.0)


def test_it_advances_after_the_last_step_of_an_epoch() -> None:
    sgd = optimizer()
    schedule = lockstep.once_an_epoch(lr_scheduler.StepLR(sgd, step_size=1, gamma=0.5), 3)
    rates = []
    for _ in range(7):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    assert rates == [1.0] * 3 + [0.5] * 3 + [0.25]


def test_refused() -> None:
    with pytest.raises(BadInput, match="at least 1 step"):
        lockstep.once_an_epoch(lr_scheduler.StepLR(optimizer(), 1), 0)
    with pytest.raises(BadInput, match="ReduceLROnPlateau advances by a metric"):
        lockstep.once_an_epoch(lr_scheduler.ReduceLROnPlateau(optimizer()), 2)
