"""Of accelerators: memory in use, which torch.accelerator tells since torch 2.9."""

from __future__ import annotations

from typing import Any

import torch


def _memory() -> Any:
    """Return the module that tells of memory: before 2.9 the accelerator's own, such as torch.cuda."""
    return torch.accelerator if hasattr(torch.accelerator, "memory_allocated") else torch.get_device_module()


def memory_allocated() -> int:
    """Return the bytes in use on the current device."""
    return int(_memory().memory_allocated())


def max_memory_allocated() -> int:
    """Return the most bytes that were in use at once on the current device."""
    return int(_memory().max_memory_allocated())


def max_memory_reserved() -> int | None:
    """Return the most bytes of the current device that torch held at once; None where its module does not tell."""
    told = getattr(_memory(), "max_memory_reserved", None)
    return None if told is None else int(told())


def reset_max_memory_allocated() -> None:
    """Count the most bytes in use from now on."""
    _memory().reset_peak_memory_stats()


def device_memory() -> int:
    """Return the bytes that are free on the current device."""
    memory = _memory()
    told = memory.get_memory_info() if hasattr(memory, "get_memory_info") else memory.mem_get_info()
    return int(told[0])
