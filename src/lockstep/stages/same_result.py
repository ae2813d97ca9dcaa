"""Whether a model's layers, called one after another, compute what its forward computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from lockstep.errors import BadInput
from lockstep.stages.layer_costs import ChainRun, untouched

if TYPE_CHECKING:
    from lockstep.stages.chain import Example, Layer


def check_same_result(model: nn.Module, layers: Sequence[Layer], example: Example) -> None:
    """Refuse layers that give another loss than the model's forward on an example.

    A model that does not repeat its own loss cannot be compared, nor can one without a forward.
    """
    try:
        whole = _loss(model, model, example)
    except NotImplementedError:
        return
    parts = _loss(model, ChainRun(model, layers, lambda _, call: call()), example)
    if parts != whole and _loss(model, model, example) == whole:
        raise BadInput(
            f"the layers of {type(model).__name__}, called one after another, give the loss {parts:.6g} on the first "
            f"samples, and its forward gives {whole:.6g}: list in Recipe(stages=...) all that forward does"
        )


def _loss(model: nn.Module, run: nn.Module, example: Example) -> float:
    with untouched(model), torch.no_grad():
        loss = float(example(run))
    return math.inf if math.isnan(loss) else loss
