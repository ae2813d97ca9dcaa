"""Being one rank of a benchmark: read the plan, measure, hand over the result or a note of the failure."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.world.place import World

RESULT, PHASES = "result.json", "phases"
GROUP_SECONDS = 300.0
THREADS = 1
"""Of each rank, as torchrun sets it."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a rank says of its failure."""

    rank: int
    """Who."""
    time: float
    """When, in seconds since the epoch."""
    lost_contact: bool
    """Whether it only noticed that another rank is gone."""
    traceback: str
    """Where it failed."""


def note_of(folder: Path, rank: int) -> Note | None:
    """Return the note that a rank has left, if it has."""
    path = _note(folder, rank)
    return Note(**json.loads(path.read_text())) if path.is_file() else None


def serve(measure: Callable[[dict[str, Any]], Any]) -> None:
    """Run as one rank: `measure` gets the plan, and what it returns on rank 0 is the result."""
    plan = json.loads(sys.argv[1])
    folder, rank = Path(plan["folder"]), plan["rank"]
    try:
        result = measure(plan)
        if rank == 0:
            (folder / RESULT).write_text(json.dumps(result))
        leave()
    except BaseException as error:
        _leave_note(folder, rank, error)
        os._exit(1)  # the end of the interpreter could wait for a rank that waits for this one


def settle_compiler(*, memory: bool) -> None:
    """Keep torch's compiler, which torch.optim imports at its first step, out of what is measured, for all ways alike.

    Where memory is taken it is imported now, so that it belongs to the baseline; else not at all, as in a run.
    """
    from lockstep.torch_compat.startup import COMPILER
    from lockstep.train.compiler_import import delay_compiler

    if memory:
        importlib.import_module(COMPILER)
    else:
        delay_compiler()


def tell(plan: dict[str, Any], text: str) -> None:
    """Say what begins; only rank 0 is heard."""
    if plan[PHASES] is not None:
        os.write(plan[PHASES], f"{text}\n".encode())


def join(plan: dict[str, Any], backend: str) -> None:
    """Meet the other ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(THREADS)
    dist.init_process_group(
        backend,
        init_method=f"file://{plan['folder']}/store",
        rank=plan["rank"],
        world_size=plan["workers"],
        timeout=timedelta(seconds=GROUP_SECONDS),
    )


def world(plan: dict[str, Any], backend: str | None) -> World:
    """Return this rank's place, as a launcher would have told it."""
    import lockstep

    rank, size, nodes = plan["rank"], plan["workers"], plan.get("nodes", 1)
    each = size // nodes
    node, local = divmod(rank, each)
    here = {"local_rank": local, "local_size": each, "node": node, "nodes": nodes, "host": "here", "device": "cpu"}
    return lockstep.World(rank=rank, size=size, threads=THREADS, backend=backend, launcher="bench", **here)


def leave() -> None:
    """Wait for the others before the group ends."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _leave_note(folder: Path, rank: int, error: BaseException) -> None:
    from lockstep.train.failure import lost_contact

    text = "".join(traceback.format_exception(error)).rstrip()
    note = Note(rank=rank, time=time.time(), lost_contact=lost_contact(error), traceback=text)
    _note(folder, rank).write_text(json.dumps(asdict(note)))


def _note(folder: Path, rank: int) -> Path:
    return folder / f"failed-{rank}.json"
