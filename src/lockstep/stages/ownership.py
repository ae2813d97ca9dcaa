"""Which stage holds which parameter and buffer of a model that is cut (pure).

[Note: shared weights]
A weight that several stages use (a tied embedding) is one tensor. The first of its stages owns it: it alone adds up its
gradient, updates it and answers for it. The others borrow it: they have a copy, which the owner renews after every
step. In backward a lane's gradient of it goes from each of its stages to the one before, and enters the sum there first
(as autograd itself adds the uses of a tensor, the last one first), so that it has the bits of the whole model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lockstep.errors import BadInput
from lockstep.stages.cuts import stage_ranges


class Ownership(NamedTuple):
    """By the name of a parameter or buffer, the stages that use it, in order; the first one owns it."""

    users: Mapping[str, tuple[int, ...]]

    def owned(self, stage: int) -> set[str]:
        """Return what a stage answers for."""
        return {name for name, stages in self.users.items() if stages[0] == stage}

    def present(self, stage: int) -> set[str]:
        """Return what a stage needs to have."""
        return {name for name, stages in self.users.items() if stage in stages}

    def shared(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that several stages use."""
        return [name for name in names if len(self.users[name]) > 1]

    def before(self, name: str, stage: int) -> int | None:
        """Return the stage that uses a tensor before this one; None if this one owns it."""
        stages = self.users[name]
        position = stages.index(stage)
        return stages[position - 1] if position else None

    def after(self, name: str, stage: int) -> int | None:
        """Return the stage that uses a tensor after this one, if there is one."""
        stages = self.users[name]
        position = stages.index(stage) + 1
        return stages[position] if position < len(stages) else None


def share_out(cut: Sequence[int], used: Sequence[set[str]], trained: Sequence[str], others: Sequence[str]) -> Ownership:
    """Return which stages use which tensor, from what each layer uses.

    A trained parameter that no layer uses is refused. Of the others (frozen parameters, buffers) the first stage holds
    what nobody uses, so that the plain state is complete.
    """
    stages = [set().union(*(used[layer] for layer in part)) for part in stage_ranges(cut, len(used))]
    users = {name: tuple(stage for stage, names in enumerate(stages) if name in names) for name in (*trained, *others)}
    unused = [name for name in trained if not users[name]]
    if unused:
        name = unused[0].removeprefix("parameter/")
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise BadInput(
            f"no stage uses the parameter {name}{more}: name the layer that uses it in Recipe(stages=...), or "
            "freeze it with requires_grad=False"
        )
    return Ownership({name: own or (0,) for name, own in users.items()})
