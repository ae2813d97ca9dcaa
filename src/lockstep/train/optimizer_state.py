"""The plain optimizer's state, gathered from whoever holds it, in the form that a stock optimizer loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.state.holdings import split_state_name
from lockstep.state.stream import gather
from lockstep.state.table import agree

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.comm.group import Group
    from lockstep.strategies.base import Strategy


def optimizer_state_dict(group: Group, strategy: Strategy) -> dict[str, Any]:
    """Return what `state_dict` of the plain optimizer would return; all ranks of the group call this together."""
    held = [one for one in strategy.holdings() if split_state_name(one.name) is not None]
    states: dict[str, dict[str, Tensor]] = {}
    for name, value in gather(group, agree(group, held), held).items():
        if (split := split_state_name(name)) is not None:
            states.setdefault(split[0], {})[split[1]] = value
    tuned = strategy.tuned()[0]
    names = [name for members in tuned.members for name in members]
    groups: list[dict[str, Any]] = []
    start = 0
    for fields, members in zip(tuned.optimizer.param_groups, tuned.members, strict=True):
        numbers = list(range(start, start + len(members)))
        groups.append({**{key: value for key, value in fields.items() if key != "params"}, "params": numbers})
        start += len(members)
    return {"state": {i: states[name] for i, name in enumerate(names) if name in states}, "param_groups": groups}
