"""Everything of torch that is private or differs between versions: what it is for, and since when.

Nothing here imports torch at the top: the command line must answer without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def skip_flight_recorder(distributed_c10d: ModuleType, backend: str) -> None:
    """Have torch attach no flight recorder to groups of a backend that is written in Python.

    Since torch 2.15. The recorder asks a group for the name of its C++ backend, and ends the start of a group that has
    none. Backends that record by themselves are left out by name: this one keeps its own account of where a rank is.
    """
    left_out = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if left_out is not None:
        left_out.add(backend)
