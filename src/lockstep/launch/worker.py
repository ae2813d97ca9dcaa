"""What a started process does: join the world, train, and write a note if that fails.

    started by one of our launchers   python -m lockstep.launch.worker RUN_FOLDER    (or forked, same function)
    started in another way            `work_here`: the same, after rank 0 has made the run folder

In the first case the starter reports a failure, in the second each rank reports its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import BadInput, Interrupted
from lockstep.launch.interruption import interruption
from lockstep.launch.process_exit import exit_now
from lockstep.train.failure import describe, leave_note, report
from lockstep.world.detect import detect

if TYPE_CHECKING:
    from lockstep.train.spec import RunSpec
    from lockstep.world.place import Place, World


def work(folder: Path) -> int:
    """Run one rank of the run that a folder describes; return its exit code. The starter reports a failure."""
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
    except KeyboardInterrupt:
        raise  # the starter, which may be this process, says where it stopped
    except BaseException as error:
        return record_failure(error, folder, rank, records.step if records else -1, print_report=False)
    world.leave()
    return 0


def work_here(spec: RunSpec, place: Place, out: Path) -> tuple[int, Path | None]:
    """Run one rank that a launcher, or a user, started directly; it reports its own failure.

    Returns the exit code and the run folder, if there is one.
    """
    from lockstep.train.loop import train
    from lockstep.train.records import Records

    records, folder = None, None
    try:
        world = _join(spec, place)
        folder = _agree_on_folder(spec, world, out)
        records = Records(folder, place.rank)
        train(spec, world, folder, records)
    except KeyboardInterrupt:
        if place.rank == 0:
            text = interruption(folder, str(out)) if folder else "interrupted before anything was started"
            print(f"lockstep: {text}", file=sys.stderr, flush=True)  # noqa: T201
        return Interrupted.exit_code, folder
    except BaseException as error:
        return record_failure(error, folder, place.rank, records.step if records else -1, print_report=True), folder
    world.leave()
    return 0, folder


def _join(spec: RunSpec, place: Place) -> World:
    from lockstep.registry import describe
    from lockstep.world.join import join

    return join(
        device=spec.device,
        backend=spec.backend,
        prefer_shared_memory=describe(spec.strategy).shares_memory,
        threads=spec.threads,
        place=place,
    )


def _agree_on_folder(spec: RunSpec, world: World, out: Path) -> Path:
    """Let rank 0 check the recipe and make the folder; its error is raised on all ranks."""
    from lockstep.comm.broadcast import broadcast_text
    from lockstep.comm.group import Group
    from lockstep.errors import BadInput
    from lockstep.train.preflight import preflight

    refusal: BadInput | None = None
    if world.rank == 0:
        try:
            preflight(spec, out)
        except BadInput as error:
            refusal = error
    text = "" if refusal else str(out.absolute())
    agreed = broadcast_text(text, Group.everyone(world.device))
    if not agreed:
        raise refusal or BadInput("rank 0 cannot start this run: its message says why")
    folder = Path(agreed)
    folder.mkdir(parents=True, exist_ok=True)  # hosts without a common file system have a folder each
    return folder


def record_failure(error: BaseException, folder: Path | None, rank: int, step: int, *, print_report: bool) -> int:
    """Write a note about this rank's failure, or print it; return the exit code: 2 only if nothing was started."""
    failure = describe(error, rank=rank, step=step)
    noted = folder is not None and leave_note(folder, failure)
    if print_report or not noted:
        print(f"lockstep: {report(failure)}", file=sys.stderr, flush=True)  # noqa: T201
    return BadInput.exit_code if failure.kind == "input" and folder is None else 1


if __name__ == "__main__":
    from lockstep.launch.parent_death import die_with_parent

    die_with_parent()
    exit_now(work(Path(sys.argv[1])))
