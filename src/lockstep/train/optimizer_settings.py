"""What an optimizer and its schedule hold beside tensors: settings of groups, counters, plain state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lockstep.errors import BadInput, printable
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
            theirs = printable(str(saved[name]))
            raise BadInput(f"{where} has the {name} {theirs}, and here it is {here[name]}: use the same")
    if len(saved["groups"]) != len(here["groups"]):
        raise BadInput(
            f"{where} has {len(saved['groups'])} optimizer groups, and here are {len(here['groups'])}: use the same"
        )
    for number, (theirs, ours) in enumerate(zip(saved["groups"], here["groups"], strict=True)):
        if theirs["parameters"] != ours["parameters"]:
            name = printable(_first_other(theirs["parameters"], ours["parameters"]))
            raise BadInput(f"{where} has other parameters in group {number} of the optimizer: {name} is the first")
        _same_form(decode(theirs["values"]), decode(ours["values"]), f"{where}: group {number} of the optimizer")
    if here["schedule"] is not None:
        _same_form(decode(saved["schedule_state"]), decode(here["schedule_state"]), f"{where}: the schedule")


def check_counters(counters: Mapping[str, str], tuned: Tuned, where: str) -> None:
    """Refuse counters (by name in the state) that differ among parameters which are updated as one tensor."""
    for names in tuned.together:
        for key in sorted({name.rpartition("/")[2] for name in counters}):
            values = {name: counters.get(f"optimizer/{name}/{key}") for name in names}
            other = [name for name in names if values[name] not in (None, values[names[0]])]
            if other:
                raise BadInput(
                    f"{where}: the optimizer has another {key!r} for {other[0]} than for others of its group, which "
                    "this strategy updates together: load it with the strategy that wrote it"
                )


def apply_settings(saved: dict[str, Any], tuned: Tuned, where: str) -> None:
    """Take the settings over, before the tensors; what the recipe says of them now is replaced.

    A schedule may refuse what it is given; then nothing is changed.
    """
    before = [dict(fields) for fields in tuned.optimizer.param_groups]
    tensors = [{key: value.clone() for key, value in fields.items() if isinstance(value, Tensor)} for fields in before]
    schedule = None if tuned.schedule is None else dict(vars(tuned.schedule))
    try:
        _replace_settings(saved, tuned)
    except Exception as error:
        for fields, old, values in zip(tuned.optimizer.param_groups, before, tensors, strict=True):
            fields.update(old)
            with torch.no_grad():
                for key, value in values.items():
                    fields[key].copy_(value)
        if tuned.schedule is not None and schedule is not None:
            vars(tuned.schedule).clear()
            vars(tuned.schedule).update(schedule)
        raise BadInput(
            f"{where} has settings that cannot be used here ({type(error).__name__}: {error!s:.200}): load it with the "
            "versions that wrote it"
        ) from error


def apply_plain_state(saved: dict[str, Any], tuned: Tuned) -> None:
    """Take over the optimizer's state that is no tensor, after the tensors."""
    for name, values in saved["plain"].items():
        for key, value in decode(values).items():
            if name in tuned.whole:
                tuned.optimizer.state[tuned.whole[name]][key] = value


def _replace_settings(saved: dict[str, Any], tuned: Tuned) -> None:
    for fields, theirs in zip(tuned.optimizer.param_groups, saved["groups"], strict=True):
        for key, value in decode(theirs["values"]).items():
            if isinstance(fields[key], Tensor):
                with torch.no_grad():
                    fields[key].copy_(value)  # the schedule holds this very tensor
            else:
                fields[key] = value
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
    except (KeyError, TypeError, AttributeError, RecursionError):
        return False
    known = {name for group in tuned.members for name in group}
    return (
        all(isinstance(one, dict) for one in values)
        and all(isinstance(group, list) and all(isinstance(name, str) for name in group) for group in members)
        and all(isinstance(name, str) for name in names)
        and isinstance(state, dict) == (saved["schedule"] is not None)
        and set(plain) <= known
    )


def _same_form(theirs: dict[str, Any], ours: dict[str, Any], where: str) -> None:
    """Refuse other names, and values that cannot take the place of those here."""
    for key in (key for key in ours if key in theirs and not _alike(theirs[key], ours[key])):
        raise BadInput(
            f"{where} has {_shown(theirs[key]):.80} for {key}, and here it is {_shown(ours[key]):.80}: it was changed, "
            "or another version wrote it. Use the version that wrote it"
        )
    if set(theirs) != set(ours):
        name = printable(_first_other(sorted(map(str, theirs)), sorted(ours)))
        raise BadInput(
            f"{where} has other settings than here: {name} is the first. Use the same optimizer and schedule"
        )


def _alike(theirs: Any, ours: Any) -> bool:
    """Say whether a value can take another's place: a tensor of the same shape, or a plain value of the same kind."""
    if isinstance(theirs, Tensor) or isinstance(ours, Tensor):
        if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
            return theirs.shape == ours.shape and theirs.dtype == ours.dtype
        return isinstance(theirs, Tensor) and isinstance(ours, float) and theirs.numel() == 1
    if ours is None or isinstance(ours, bool):
        return ours is None or theirs is None or isinstance(theirs, bool | int)
    if isinstance(ours, int | float):
        return isinstance(theirs, int | float)
    if isinstance(ours, tuple):
        return isinstance(theirs, tuple) and len(theirs) == len(ours) and all(map(_alike, theirs, ours))
    return type(theirs) is type(ours)


def _first_other(theirs: list[str], ours: list[str]) -> str:
    return next((name for name in (*theirs, *ours) if (name in theirs) != (name in ours)), "their order")
