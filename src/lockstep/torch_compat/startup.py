"""What is needed of torch before it is imported; this module does not import it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

DISTRIBUTED: Final = "torch.distributed.distributed_c10d"
"""The module that holds the table of backends: when it is loaded, a backend can be registered."""

COMPILER: Final = "torch._dynamo"
"""torch.optim imports it at its first use, which takes nearly as long as torch itself; see late_compiler.py."""


def drop_empty_compiler_cache() -> None:
    """Remove the folder torchinductor_USER that importing the compiler makes, if nothing was compiled into it.

    Since torch 2.9. The compiler makes it again when it has something to keep.
    """
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if os.path.basename(folder).startswith("torchinductor_"):  # noqa: PTH119 - the compiler's own, by its name
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106 - fails unless it is empty


def skip_flight_recorder(distributed_c10d: ModuleType, backend: str) -> None:
    """Have torch attach no flight recorder to groups of a backend that is written in Python.

    Since torch 2.15. The recorder asks a group for the name of its C++ backend, and ends the start of a group that has
    none. Backends that record by themselves are left out by name: this one keeps its own account of where a rank is.
    """
    left_out = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if left_out is not None:
        left_out.add(backend)
