"""A second call of a model that is cut is answered where the answer is known, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.stages.chain import find_layers
from lockstep.stages.stage_model import StagedModel

INPUTS = torch.arange(6.0).view(2, 3)


def evaluated(function: Callable[[nn.Module], Any], *, training: bool = False) -> Any:
    """Call a function with a model whose last stage has all layers."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)).train(training)
    with torch.no_grad():
        return StagedModel(model, find_layers(model, None, None), last=True, device="cpu").run(function, None)[0]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("again", [INPUTS, INPUTS.clone()], ids=["same", "equal"])
def test_the_same_arguments_have_the_same_answer(again: Tensor, inference: bool) -> None:
    with torch.inference_mode(inference):
        first, second = evaluated(lambda model: (model(INPUTS), model(again)))
    assert first is second


def other_values(model: nn.Module) -> None:
    model(INPUTS)
    model(INPUTS + 1)


def another_dtype(model: nn.Module) -> None:
    model(INPUTS)
    model(INPUTS.double())


def inputs_changed_in_place(model: nn.Module) -> None:
    inputs = INPUTS.clone()
    model(inputs)
    model(inputs.add_(1))


def output_changed_in_place(model: nn.Module) -> None:
    model(INPUTS).zero_()
    model(INPUTS)


def inputs_changed_in_inference_mode(model: nn.Module) -> None:
    with torch.inference_mode():
        inputs_changed_in_place(model)


def output_changed_in_inference_mode(model: nn.Module) -> None:
    with torch.inference_mode():
        output_changed_in_place(model)


def under_autocast(model: nn.Module) -> None:
    model(INPUTS)
    with torch.autocast("cpu", torch.bfloat16):
        model(INPUTS)


def switched_to_training(model: nn.Module) -> None:
    model.train()
    model(INPUTS)
    model(INPUTS)


@pytest.mark.parametrize(
    "function",
    [
        other_values,
        another_dtype,
        inputs_changed_in_place,
        output_changed_in_place,
        inputs_changed_in_inference_mode,
        output_changed_in_inference_mode,
        under_autocast,
        switched_to_training,
    ],
)
def test_what_may_have_another_answer_is_refused(function: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(BadInput, match="just once"):
        evaluated(function)


def test_in_training_a_second_call_is_refused() -> None:
    with pytest.raises(BadInput, match="just once"):
        evaluated(lambda model: (model(INPUTS), model(INPUTS)), training=True)
