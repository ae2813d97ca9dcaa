"""What makes kernels give the same bits twice: asked of torch for a step, and put back after it.

On accelerators, and on the CPU with several threads, some operators add in the order in which threads arrive. Exact
strategies ask torch for the forms that do not; an operator that has no such form ends the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstep import process_wide
from lockstep.errors import LockstepError
from lockstep.registry import described

if TYPE_CHECKING:
    from lockstep.settings import Settings
    from lockstep.world.place import World

WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
"""cuBLAS reads it when it is first used; without it, its sums depend on what else runs."""
_REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")
_CUBLAS = "Deterministic behavior was enabled with either"


def needed(settings: Settings, world: World) -> bool:
    """Say whether steps must ask for deterministic kernels: a promise of bits, and kernels that could break it."""
    description = described(settings.strategy)
    promised = settings.exact and description is not None and description.exact
    return promised and (world.device != "cpu" or world.threads > 1) and not process_wide.leave("determinism")


def products(world: World) -> str:
    """Return how an accelerator multiplies float32 numbers (TF32 or not): a part of what the bits depend on."""
    return "" if world.device == "cpu" else torch.get_float32_matmul_precision()


def described_for(settings: Settings, world: World) -> str:
    """Say in one line what steps ask of torch; empty if nothing."""
    if not needed(settings, world) or world.device == "cpu":
        return ""
    return f"deterministic kernels, no autotuning, float32 products: {products(world)}"


@contextlib.contextmanager
def deterministic(world: World) -> Iterator[None]:
    """Ask for deterministic kernels and no autotuning; put back what was set before."""
    before, tuned = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    switches: Any = torch.utils.deterministic  # a module whose one name is a property
    filled = switches.fill_uninitialized_memory
    if world.device.startswith("cuda"):
        os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.set_deterministic_debug_mode("error")
    switches.fill_uninitialized_memory = False  # it costs a pass over memory, and no bit depends on it
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        told = refusal(error, world)
        if told is None:
            raise
        raise told from error
    finally:
        torch.backends.cudnn.benchmark = tuned
        switches.fill_uninitialized_memory = filled
        torch.set_deterministic_debug_mode(before)


def refuse_silent_autocast() -> None:
    """Have torch's warning that autocast is disabled, because the device lacks the dtype, end the run."""
    warnings.filterwarnings("error", message=r"(?s).*autocast, but the target dtype is not supported")


def refusal(error: RuntimeError, world: World) -> LockstepError | None:
    """Return what to tell the user if an operator has no deterministic form; None for another error."""
    named = _REFUSED.search(str(error))
    if named is None and _CUBLAS not in str(error):
        return None
    what, kind = named[1] if named else f"cuBLAS without {WORKSPACE}=:4096:8", world.device.partition(":")[0]
    return LockstepError(
        f"{what} has no deterministic form on {kind}, so the same bits cannot be promised: use another operator in the "
        "model, or --inexact, which promises none"
    )
