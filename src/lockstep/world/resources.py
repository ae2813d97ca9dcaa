"""The resources of a worker: CPUs, threads and device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.world.place import Place


# [Note: threads] Kernels give other bits with other numbers of threads. So a default must not follow the workers, the
# launcher or the machine. The number is the one given (`--threads`, `join(threads=)`), else OMP_NUM_THREADS, which
# torch itself follows, else one. Slurm's CPUs per task say what a rank may use, not how many threads it computes with.
OMP = "OMP_NUM_THREADS"
DEFAULT_THREADS = 1
ALL_CPUS = "all"


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(env: Mapping[str, str]) -> tuple[int, str]:
    """Return the threads per worker where none are given, and the reason; see [Note: threads]."""
    text = env.get(OMP, "")
    if not text:
        return DEFAULT_THREADS, "the default, on any machine and for any number of workers"
    if not _is_count(text):
        raise BadInput(f"found {OMP}={text!r}, expected a number of threads: correct or unset it")
    return int(text), f"{OMP}={text}"


def read_threads(text: str, cpus: int, local_size: int) -> int:
    """Return the threads per worker that were typed: a number, or `all` CPUs, shared out over a host's workers."""
    if text == ALL_CPUS:
        return max(1, cpus // local_size)
    if not _is_count(text):
        raise BadInput(f"found --threads {text}, expected a number from 1 up, or {ALL_CPUS}")
    return int(text)


def local_workers(workers: int, nodes: int | None) -> int:
    """Return how many workers share a host."""
    return -(-workers // (nodes or 1))


def idle_cpus(threads: int, cpus: int, local_size: int) -> str:
    """Say that one thread for each worker leaves CPUs idle, and what would use them; empty if that is not so."""
    if threads > 1 or local_size >= cpus:
        return ""
    return (
        f"computing on {local_size} of {cpus} CPUs, one thread for each worker: more --workers, or --threads "
        f"{ALL_CPUS}, use the rest; another number of threads gives other bits"
    )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) >= 1


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
