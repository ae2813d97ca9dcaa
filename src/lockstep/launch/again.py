"""Whether this process was started before: by torchrun after a failure, or in a job that may be started again."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path


def restarts(env: Mapping[str, str]) -> bool:
    """Say whether torchrun has started its ranks again, after one of them failed."""
    return re.fullmatch(r"[1-9][0-9]*", env.get("TORCHELASTIC_RESTART_COUNT", "")) is not None


def in_batch_job(env: Mapping[str, str]) -> bool:
    """Say whether a batch system may end this process at a time limit."""
    return "SLURM_JOB_ID" in env


def started(env: Mapping[str, str]) -> float:
    """Return when this run was started, in seconds since the epoch: the same when torchrun starts its ranks again."""
    if "TORCHELASTIC_RESTART_COUNT" not in env:
        return time.time()
    try:  # the agent's start: field 22, in ticks since the machine's, after a name that may contain anything
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        booted = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() if booted is None else int(booted[1]) + ticks / os.sysconf("SC_CLK_TCK")
