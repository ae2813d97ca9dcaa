"""How much memory a process may still allocate."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Return the free bytes of the machine, or of the control group if it allows less."""
    import psutil  # only for building: a process that only reads starts faster without it

    free = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no control group, or no limit in it
        return free
    return max(0, min(free, limit - used))
