"""Which models go whole between hosts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from lockstep.settings import Settings
from lockstep.strategies.base import Training
from lockstep.strategies.one_message_step import MOST, small_enough

QUARTER = MOST // 4


@pytest.mark.parametrize(
    ("numbers", "partials", "small"),
    [
        (QUARTER, [1, 1], True),
        (QUARTER + 1, [1, 1], False),
        (QUARTER, [1, 1, 1], False),
        (QUARTER // 2, [1, 1, 1], True),
        (QUARTER, [2, 1], False),
        (QUARTER // 16, [16, 16], True),
        (QUARTER // 16 + 1, [16, 16], False),
    ],
)
def test_what_a_host_would_send_decides(numbers: int, partials: list[int], small: bool) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.empty(numbers - 8, device="meta"))
    model.frozen = nn.Parameter(torch.empty(MOST, device="meta"), requires_grad=False)
    model.register_buffer("mean", torch.empty(8, device="meta"))
    model.register_buffer("count", torch.empty(MOST, dtype=torch.int64, device="meta"))
    settings = Settings(lanes=8)
    training = Training(model=model, optimizer=SGD, loss=lambda model, batch: torch.zeros(()), settings=settings)
    assert small_enough(training, partials) is small
