"""The resources of a worker: CPUs, threads and device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.world.place import Place


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(env: Mapping[str, str], cpus: int, local_size: int) -> tuple[int, str]:
    """Return threads per worker and the reason: set by the user, by Slurm, or an equal share of the CPUs."""
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        text = env.get(name, "")
        if text:
            if not text.isdigit() or int(text) < 1:
                raise BadInput(f"found {name}={text!r}, expected a number of threads: correct or unset it")
            return int(text), f"{name}={text}"
    return max(1, cpus // local_size), f"{cpus} usable CPUs // {local_size} workers of this host"


def choose_device(requested: str, place: Place) -> str:
    """Return the device of this worker: its own accelerator if there is one for every local worker."""
    import torch

    if requested == "cpu":
        return "cpu"
    if not torch.accelerator.is_available():
        if requested == "auto":
            return "cpu"
        raise BadInput(f"--device {requested}: no accelerator is available on this machine: use --device cpu")
    kind = str(torch.accelerator.current_accelerator())
    count = torch.accelerator.device_count()
    if requested not in ("auto", kind):
        raise BadInput(f"--device {requested}: the accelerator of this machine is {kind}: use auto, cpu or {kind}")
    if place.local_size > count:
        raise BadInput(
            f"{place.local_size} workers on this host, but only {count} accelerators: use at most {count} workers per "
            "host, or --device cpu"
        )
    return f"{kind}:{place.local_rank}"
