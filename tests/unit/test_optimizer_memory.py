"""How much state an optimizer will keep: told by a step on a few elements, as a real step makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn, optim

from lockstep.settings import Settings
from lockstep.stages.actions import ONE_LANE
from lockstep.strategies.optimizer_memory import stage_memory, state_bytes

Factory = Callable[[Iterable[nn.Parameter]], optim.Optimizer]
FACTORIES: dict[str, Factory] = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9),
    "adamw": lambda ps: optim.AdamW(ps, lr=0.1),
    "amsgrad": lambda ps: optim.Adam(ps, lr=0.1, amsgrad=True),
    "adagrad": lambda ps: optim.Adagrad(ps, lr=0.1),
    "groups": lambda ps: optim.SGD([{"params": [p], "momentum": 0.9 * (p.dim() > 1)} for p in ps], lr=0.1),
    "whole tensors": lambda ps: optim.Adafactor(ps, lr=0.1),
}


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 32).double())


@pytest.mark.parametrize("name", FACTORIES)
def test_as_a_real_step_makes_it(name: str) -> None:
    model = make_model()
    told, sliced = state_bytes(FACTORIES[name], model)
    other = make_model()
    optimizer = FACTORIES[name](list(other.parameters()))
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states: list[Any] = [value for state in optimizer.state.values() for value in state.values()]
    real = sum(one.numel() * one.element_size() for one in states if isinstance(one, torch.Tensor) and one.dim())
    assert real <= told <= real + 64 * len(states)
    assert sliced == (name != "whole tensors")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_stage_holds_weights_gradients_and_state() -> None:
    model = nn.Linear(64, 64)
    settings = Settings(strategy="layers", workers=4, stages=2, lanes=8, stage_memory="3KiB")
    memory = stage_memory(FACTORIES["adamw"], model, settings, lanes=8, order=ONE_LANE)
    assert memory.copies == 1 + (1 + 0 + 1) + 2 / 2
    assert (memory.lanes, memory.limit) == (4, 3072)
