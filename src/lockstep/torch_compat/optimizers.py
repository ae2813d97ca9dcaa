"""Of torch.optim: state that an optimizer makes when it is constructed, before any step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Adagrad

if TYPE_CHECKING:
    from torch.optim import Optimizer


def begin_anew(optimizer: Optimizer) -> None:
    """Give an optimizer whose parameters were replaced the state of one that was just constructed over them.

    All but Adagrad begin with none. Adagrad makes its sums when it is constructed; newer versions also make them in a
    step if they are missing (2.13 does, 2.8 raises a KeyError).
    """
    optimizer.state.clear()
    if isinstance(optimizer, Adagrad):
        groups = [dict(group) for group in optimizer.param_groups]
        first = optimizer.defaults["initial_accumulator_value"]
        optimizer.state.update(Adagrad(groups, initial_accumulator_value=first).state)
