"""Of torch.optim: the state that an optimizer begins with, hooks around its steps, and what schedules note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Adagrad
from torch.optim import optimizer as torch_optimizer

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


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Say whether somebody wants to know of each step: hooks of this optimizer, or of all."""
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    every = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return any((*own, *every))


def count_as_stepped(optimizer: Optimizer) -> None:
    """Let a schedule advance without a warning on a worker that had nothing to update, and so did not step."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
