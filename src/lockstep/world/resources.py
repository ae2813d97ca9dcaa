"""The resources of a worker: CPUs and threads; world/worker_device.py has its device."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from lockstep.errors import BadInput

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


def own_cpus(env: Mapping[str, str], local_size: int) -> int:
    """Return how many CPUs one of a host's workers has: what the job gives a task, else its share of the host."""
    asked = env.get("SLURM_CPUS_PER_TASK", "")
    return int(asked) if _is_count(asked) else max(1, usable_cpus() // local_size)


def job_number(env: Mapping[str, str]) -> str:
    """Return the number of the Slurm job that this process runs in; empty outside of one."""
    job = env.get("SLURM_JOB_ID", "")
    return job if re.fullmatch(r"[0-9]{1,20}", job) else ""


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
    return re.fullmatch(r"[0-9]{1,9}", text) is not None and int(text) >= 1
