"""The signal before a time limit: noted when it comes, acted on between two steps, by all ranks at the same one.

A checkpoint that is written inside a signal handler may be one of half a step. So the handler only notes the signal;
after each step the ranks ask each other whether one of them has it, and then all write a checkpoint and end.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.errors import LockstepError
from lockstep.train.schema.rank_jsonl import CheckpointLine, UsageLine, rank_path, read_rank

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from lockstep.comm.group import Group

NUMBER = signal.SIGUSR2
"""Not SIGUSR1, which NCCL uses."""
RARELY = 10
"""Where ranks do not meet after each step by themselves, to ask is to wait: so only every so many steps."""


class Stopped(LockstepError):
    """The run stopped between two steps, because it was told to; its checkpoint is written."""

    exit_code = 75
    """`try again later`, in sysexits.h."""


def stopped_text(folder: Path, steps: int) -> str:
    """Return the line for a run that was told to stop."""
    return (
        f"told to stop by signal {NUMBER.name}: a checkpoint after step {steps - 1} is written; go on with: "
        f"lockstep run --resume {shlex.quote(str(folder))}"
    )


def stopped_after(folder: Path) -> int | None:
    """Return after how many steps the last attempt of a run was told to stop; None: it was not."""
    path = rank_path(folder, 0)
    lines = [line for line in read_rank(path) if not isinstance(line, UsageLine)] if path.is_file() else []
    last = lines[-1] if lines else None
    return last.steps if isinstance(last, CheckpointLine) and last.stop else None


class StopSignal:
    """Whether the signal has come, to any rank."""

    def __init__(self) -> None:
        self._noted = False
        self.agreed = False
        """Whether all ranks stop after this step."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note the signal from here on; elsewhere than in the main thread it cannot be."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(NUMBER, self._note)
        try:
            yield
        finally:
            signal.signal(NUMBER, before)

    def after(self, step: int, group: Group, *, apart: bool = False) -> bool:
        """Say whether to stop after this step; all ranks call it together and get the same answer.

        `apart`: they do not meet after each step, as on an accelerator.
        """
        if group.size == 1:
            self.agreed = self._noted
        elif (group.device == "cpu" and not apart) or step % RARELY == 0:
            import torch
            import torch.distributed as dist

            noted = torch.tensor([int(self._noted)], dtype=torch.int32, device=group.device)
            dist.all_reduce(noted, dist.ReduceOp.MAX, group=group.process_group)
            self.agreed = bool(noted.item())
        return self.agreed

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True
