"""What lockstep changes in the process of its user, and the one way to have it leave that alone.

    LOCKSTEP_LEAVE=malloc,threads python train.py

docs/process-wide.md lists these effects, and those in processes that lockstep starts itself.
"""

from __future__ import annotations

import os
from typing import Final

from lockstep.errors import BadInput

VARIABLE: Final = "LOCKSTEP_LEAVE"

EFFECTS: Final = {
    "shm": "`import lockstep` registers the backend `shm` with torch.distributed, by an import hook if it comes first",
    "threads": "`join()` sets torch's number of threads (1, if nothing else is given)",
    "interface": "`join()` sets GLOO_SOCKET_IFNAME, if it is not set and the backend is gloo",
    "determinism": "a step of an exact strategy asks torch for deterministic kernels, on accelerators and on several "
    "threads, and then puts it back",
    "malloc": "a `Trainer` has glibc keep freed memory for the next step",
    "compiler": "a `Trainer` has torch import its compiler when something compiles, not with the first optimizer",
}
"""What can be left alone: its name in the variable, and what it is."""


def leave(effect: str) -> bool:
    """Say whether the user wants this left alone."""
    return effect in _named()


def check() -> None:
    """Refuse a name that is none of these: a typing error would have no effect."""
    unknown = [name for name in _named() if name not in EFFECTS]
    if unknown:
        raise BadInput(
            f"{VARIABLE}={','.join(unknown)}: expected names among {', '.join(EFFECTS)}, separated by commas"
        )


def _named() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
