"""What a started process does: join the world, train, and leave a note if that fails.

started by a launcher of ours   python -m lockstep.launch.worker RUN_FOLDER    (or forked, same function)
started by somebody else        `work_here`: the same, once rank 0 has made the run folder
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lockstep.train.failure import describe, leave_note, report
from lockstep.world.detect import detect

if TYPE_CHECKING:
    from lockstep.train.spec import RunSpec
    from lockstep.world.place import Place, World


def work(folder: Path) -> int:
    """Run one rank of the run that a folder describes; return its exit code. The starter makes the report."""
    from lockstep.train.loop import train
    from lockstep.train.records import Records
    from lockstep.train.schema.run_json import read_setup

    rank, records = 0, None
    try:
        spec, place = read_setup(folder).spec, detect(os.environ)
        rank = place.rank
        records = Records(folder, rank)
        world = _join(spec, place)
        train(spec, world, folder, records)
    except BaseException as error:
        return failed(error, folder, rank, records.step if records else -1, aloud=False)
    world.leave()
    return 0


def work_here(spec: RunSpec, place: Place, out: Path) -> tuple[int, Path | None]:
    """Run one rank that a launcher, or a person, started directly; it reports for itself.

    Returns the exit code and the run folder, if it came to one.
    """
    from lockstep.train.loop import train
    from lockstep.train.records import Records

    records, folder = None, None
    try:
        world = _join(spec, place)
        folder = _agree_on_folder(spec, world, out)
        records = Records(folder, place.rank)
        train(spec, world, folder, records)
    except BaseException as error:
        return failed(error, folder, place.rank, records.step if records else -1, aloud=True), folder
    world.leave()
    return 0, folder


def _join(spec: RunSpec, place: Place) -> World:
    from lockstep.registry import describe
    from lockstep.world.join import join
    from lockstep.world.resources import usable_cpus

    threads, description = spec.threads, describe(spec.strategy)
    if threads is None and description.one_process and spec.workers > 1:
        threads = max(1, usable_cpus() // spec.workers)
    return join(
        device=spec.device,
        backend=spec.backend,
        prefer_shared_memory=description.shares_memory,
        threads=threads,
        place=place,
    )


def _agree_on_folder(spec: RunSpec, world: World, out: Path) -> Path:
    """Let rank 0 check the recipe and make the folder; what it refuses is everybody's error, not a hang."""
    from lockstep.comm.broadcast import broadcast_text
    from lockstep.comm.group import Group
    from lockstep.errors import BadInput
    from lockstep.train.preflight import preflight

    refused: BadInput | None = None
    if world.rank == 0:
        try:
            preflight(spec, out)
        except BadInput as error:
            refused = error
    text = "" if refused else str(out.absolute())
    told = broadcast_text(text, Group.everyone(world.device))
    if not told:
        raise refused or BadInput("rank 0 refused this run; its message says why")
    folder = Path(told)
    folder.mkdir(parents=True, exist_ok=True)  # hosts that share no file system have a folder each
    return folder


def failed(error: BaseException, folder: Path | None, rank: int, step: int, *, aloud: bool) -> int:
    """Leave this rank's note about its end, or say it aloud; return the exit code."""
    failure = describe(error, rank=rank, step=step)
    noted = folder is not None and leave_note(folder, failure)
    if aloud or not noted:
        print(f"lockstep: {report(failure)}", file=sys.stderr, flush=True)  # noqa: T201
    return 2 if failure.kind == "input" else 1


def leave(code: int) -> NoReturn:
    """End the process now: after a failure, threads that wait for a dead peer would keep it alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code and detect(os.environ).launcher == "mpich":
        # Hydra ends a job for a signal, but lets the other ranks wait for ever after an exit code.
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(code)


if __name__ == "__main__":
    from lockstep.launch.parent_death import die_with_parent

    die_with_parent()
    leave(work(Path(sys.argv[1])))
