"""Which device a worker computes on: the CPU, or an accelerator of its own, of whatever kind torch knows.

--device auto     an accelerator for every worker of the host if there is one, else the CPU
--device cuda     an accelerator of that kind for every worker: the worker's number on its host is the device's
--device cuda:1   that one device, for one process; with strategy dp its threads have this one and the next ones
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lockstep.errors import BadInput, nearest

if TYPE_CHECKING:
    from lockstep.world.place import Place

AUTO, CPU = "auto", "cpu"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that hide devices from a process; devices, or slices of one (MIG), are listed by number or name."""


def choose_device(requested: str, place: Place, *, own: bool = False) -> str:
    """Return the device of this worker: its own accelerator if there is one for every local worker.

    `own`: this is the worker's own environment, in which a launcher may have left it one device of the host's.
    """
    kind, index = read_device(requested)
    if kind == CPU:
        return CPU
    import torch

    if not torch.accelerator.is_available():
        if kind == AUTO:
            return CPU
        raise BadInput(f"--device {requested}: no accelerator is available on this machine: use --device cpu{hidden()}")
    here, count = str(torch.accelerator.current_accelerator()), torch.accelerator.device_count()
    if kind not in (AUTO, here):
        raise BadInput(f"--device {requested}: the accelerator of this machine is {here}: use auto, cpu or {here}")
    if index is not None:
        return _named(requested, here, index, place.local_size)
    if own and place.local_size > count == 1 == listed():
        return f"{here}:0"
    if place.local_size > count:
        raise BadInput(
            f"{place.local_size} workers on this host, but only {count} accelerator{'s' if count > 1 else ''} "
            f"({here}{hidden()}): use at most {count} worker{'s' if count > 1 else ''} per host, or --device cpu"
        )
    return f"{here}:{place.local_rank}"


def read_device(requested: str) -> tuple[str, int | None]:
    """Return the kind of device that was typed, and its number if there is one."""
    if requested in (AUTO, CPU):
        return requested, None
    import torch

    kind, _, number = requested.partition(":")
    try:
        place = torch.device(requested)
    except RuntimeError as error:
        known = [AUTO, CPU, *_kinds(error)]
        near = nearest(kind, known) if kind not in known else f": expected a number after {kind}:"
        raise BadInput(f"--device {requested}: torch knows no such device{near}") from error
    if place.type == CPU or (number and place.index is None):
        raise BadInput(f"--device {requested}: use --device cpu, which has no number")
    return place.type, place.index


def hidden(env: Mapping[str, str] = os.environ) -> str:
    """Say which variable hides devices, for a message; empty if none does."""
    return "".join(f"; {name}={env[name]}" for name in VISIBLE if name in env)


def listed(env: Mapping[str, str] = os.environ) -> int | None:
    """Return how many devices the variables leave this process; None if no variable says so."""
    lists = [env[name] for name in VISIBLE if env.get(name)]
    return min(len(one.split(",")) for one in lists) if lists else None


def visible_here(device: str) -> str:
    """Return a text that two workers of a host share exactly if they would use one device."""
    return device + hidden()


def _named(requested: str, kind: str, index: int, local_size: int) -> str:
    import torch

    count = torch.accelerator.device_count()
    if index >= count:
        raise BadInput(
            f"--device {requested}: this machine has {count} of them, {kind}:0 to {kind}:{count - 1}{hidden()}: use "
            "one of these"
        )
    if local_size > 1:
        raise BadInput(
            f"--device {requested} is one device, and there are {local_size} workers on this host: use --device "
            f"{kind}, which gives each its own"
        )
    return f"{kind}:{index}"


def _kinds(error: RuntimeError) -> list[str]:
    """Return the kinds that torch lists when it refuses one."""
    _, _, rest = str(error).partition("Expected one of ")
    return [name.strip() for name in rest.partition(" device type")[0].split(",") if name.strip()]
