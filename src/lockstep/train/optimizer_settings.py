"""What an optimizer and its schedule hold beside tensors: settings of groups, counters, plain state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lockstep.errors import BadInput
from lockstep.train.plain_data import decode, encode

if TYPE_CHECKING:
    from lockstep.strategies.base import Tuned


def settings_of(tuned: Tuned) -> dict[str, Any]:
    """Return the settings as JSON can hold them; refuse state that a checkpoint cannot hold."""
    optimizer, schedule = tuned.optimizer, tuned.schedule
    strange = [key for key in optimizer.state if not isinstance(key, Tensor)]
    if strange:
        raise BadInput(f"the optimizer keeps state under {strange[0]!r}, which belongs to no parameter")
    groups = []
    for number, (fields, members) in enumerate(zip(optimizer.param_groups, tuned.members, strict=True)):
        values = {key: value for key, value in fields.items() if key != "params"}
        groups.append({"parameters": members, "values": encode(values, f"group {number} of the optimizer")})
    return {
        "optimizer": type(optimizer).__qualname__,
        "groups": groups,
        "plain": {name: encode(values, f"the optimizer's state of {name}") for name, values in _plain(tuned).items()},
        "schedule": None if schedule is None else type(schedule).__qualname__,
        "schedule_state": None if schedule is None else encode(schedule.state_dict(), "the state of the schedule"),
    }


def first_settings(tuned: Tuned) -> dict[str, Any] | None:
    """Return the settings as the recipe, or the loop's author, made them; None where a checkpoint cannot hold them."""
    try:
        return settings_of(tuned)
    except BadInput:
        return None


def changed_settings(saved: dict[str, Any] | None, here: dict[str, Any] | None) -> list[str]:
    """Return what was made differently when the run began, a sentence each; what the checkpoint holds is used.

    Both are of the start, because a schedule changes settings from step to step.
    """
    if saved is None or here is None:
        return []
    pairs = [
        (f"{{key}} of group {number} of the optimizer", _chosen(theirs["values"]), _chosen(ours["values"]))
        for number, (theirs, ours) in enumerate(zip(saved["groups"], here["groups"], strict=True))
    ]
    if here["schedule"] is not None:
        schedule = f"{{key}} of the schedule {here['schedule']}"
        pairs.append((schedule, _chosen(saved["schedule_state"]), _chosen(here["schedule_state"])))
    return [
        f"{label.format(key=key)} was {_shown(theirs[key])} when the run began, and is {_shown(ours[key])} now: the "
        "checkpoint's is used. For another, begin a new run with these weights"
        for label, theirs, ours in pairs
        for key in theirs
        if key in ours and _shown(theirs[key]) != _shown(ours[key])
    ]


def _chosen(encoded: Any) -> dict[str, Any]:
    """Return the settings that a person chose; a schedule changes `lr`, and keeps what was chosen as `initial_lr`."""
    values: dict[str, Any] = decode(encoded)
    if "initial_lr" in values:
        values["lr"] = values.pop("initial_lr")
    return {key: value for key, value in values.items() if not key.startswith("_") and key != "base_lrs"}


def _shown(value: Any) -> str:
    return repr(value.tolist()) if isinstance(value, Tensor) else repr(value)


def check_settings(saved: dict[str, Any], tuned: Tuned, where: str) -> None:
    """Refuse another optimizer, other groups or another schedule; nothing is changed yet."""
    here = settings_of(tuned)
    if not _well_formed(saved, tuned):
        raise BadInput(f"{where} has settings of the optimizer that cannot be read: it was written by another version")
    for name in ("optimizer", "schedule"):
        if saved[name] != here[name]:
            raise BadInput(f"{where} has the {name} {saved[name]}, and here it is {here[name]}: use the same")
    if len(saved["groups"]) != len(here["groups"]):
        raise BadInput(
            f"{where} has {len(saved['groups'])} optimizer groups, and here are {len(here['groups'])}: use the same"
        )
    for number, (theirs, ours) in enumerate(zip(saved["groups"], here["groups"], strict=True)):
        if theirs["parameters"] != ours["parameters"]:
            name = _first_other(theirs["parameters"], ours["parameters"])
            raise BadInput(f"{where} has other parameters in group {number} of the optimizer: {name} is the first")
        _same_keys(decode(theirs["values"]), decode(ours["values"]), f"{where}: group {number} of the optimizer")
    if here["schedule"] is not None:
        _same_keys(decode(saved["schedule_state"]), decode(here["schedule_state"]), f"{where}: the schedule")


def apply_settings(saved: dict[str, Any], tuned: Tuned) -> None:
    """Take the settings over, after the tensors; what the recipe says of them now is replaced."""
    for fields, theirs in zip(tuned.optimizer.param_groups, saved["groups"], strict=True):
        for key, value in decode(theirs["values"]).items():
            if isinstance(fields[key], Tensor):
                with torch.no_grad():
                    fields[key].copy_(value)  # the schedule holds this very tensor
            else:
                fields[key] = value
    for name, values in saved["plain"].items():
        for key, value in decode(values).items():
            if name in tuned.whole:
                tuned.optimizer.state[tuned.whole[name]][key] = value
    if tuned.schedule is not None:
        tuned.schedule.load_state_dict(decode(saved["schedule_state"]))


def _plain(tuned: Tuned) -> dict[str, dict[str, Any]]:
    plain: dict[str, dict[str, Any]] = {}
    for name, parameter in tuned.whole.items():
        held = tuned.optimizer.state.get(parameter, {})
        values = {key: value for key, value in held.items() if not isinstance(value, Tensor)}
        if values:
            plain[name] = values
    return plain


def _well_formed(saved: Any, tuned: Tuned) -> bool:
    """Say whether settings have the form that `settings_of` gives them, so that they can be taken over to the end."""
    try:
        groups, plain = saved["groups"], saved["plain"]
        values = [decode(group["values"]) for group in groups] + [decode(one) for one in plain.values()]
        members = [group["parameters"] for group in groups]
        state = decode(saved["schedule_state"])
        names = (saved["optimizer"], saved["schedule"] or "")
    except (KeyError, TypeError, AttributeError):
        return False
    known = {name for group in tuned.members for name in group}
    return (
        all(isinstance(one, dict) for one in values)
        and all(isinstance(group, list) and all(isinstance(name, str) for name in group) for group in members)
        and all(isinstance(name, str) for name in names)
        and isinstance(state, dict) == (saved["schedule"] is not None)
        and set(plain) <= known
    )


def _same_keys(theirs: dict[str, Any], ours: dict[str, Any], where: str) -> None:
    if set(theirs) != set(ours):
        name = _first_other(sorted(theirs), sorted(ours))
        raise BadInput(
            f"{where} has other settings than here: {name} is the first. Use the same optimizer and schedule"
        )


def _first_other(theirs: list[str], ours: list[str]) -> str:
    return next((name for name in (*theirs, *ours) if (name in theirs) != (name in ours)), "their order")
