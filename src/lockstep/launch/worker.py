"""What a started process does: join the world, train, and leave a note if that fails.

    started by a launcher of ours   python -m lockstep.launch.worker RUN_FOLDER    (or forked, same function)
    started by somebody else        `work_here`: the same, once rank 0 has made the run folder
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.launch.detect import detect
from lockstep.train.failure import describe, leave_note, report

if TYPE_CHECKING:
    from lockstep.launch.detect import Place
    from lockstep.train.spec import RunSpec
    from lockstep.world import World


def work(folder: Path) -> int:
    """Run one rank of the run that a folder orders; return its exit code. The starter makes the report."""
    from lockstep.train.loop import train
    from lockstep.train.records import Records
    from lockstep.train.spec import read_spec
    from lockstep.world import join

    rank, records = 0, None
    try:
        spec, place = read_spec(folder), detect(os.environ)
        rank = place.rank
        records = Records(folder, rank)
        world = join(device=spec.device, backend=spec.backend, threads=spec.threads, place=place)
        train(spec, world, folder, records)
    except BaseException as error:  # noqa: BLE001 - also exit() and Ctrl-C: a rank that leaves has failed
        return _failed(error, folder, rank, records.step if records else -1, aloud=False)
    world.leave()
    return 0


def work_here(spec: RunSpec, place: Place, out: Path) -> int:
    """Run one rank that a launcher, or a person, started directly; it reports for itself."""
    from lockstep.train.loop import train
    from lockstep.train.records import Records
    from lockstep.world import join

    rank, records, folder = place.rank, None, None
    try:
        world = join(device=spec.device, backend=spec.backend, threads=spec.threads, place=place)
        folder = _agree_on_folder(spec, world, out)
        records = Records(folder, rank)
        train(spec, world, folder, records)
    except BaseException as error:  # noqa: BLE001 - as above
        return _failed(error, folder, rank, records.step if records else -1, aloud=True)
    world.leave()
    return 0


def _agree_on_folder(spec: RunSpec, world: World, out: Path) -> Path:
    """Let rank 0 check the recipe and make the folder; an error there is everybody's, not a hang."""
    import torch
    import torch.distributed as dist

    from lockstep.errors import BadInput
    from lockstep.train.preflight import preflight

    refused: BadInput | None = None
    if world.rank == 0:
        try:
            preflight(spec, out)
        except BadInput as error:
            refused = error
    if world.size > 1:
        fine = torch.tensor(int(refused is None), device=world.device)
        dist.broadcast(fine, src=0)
        if not fine and refused is None:
            refused = BadInput("rank 0 refused this run; its message says why")
    if refused is not None:
        raise refused
    out.mkdir(parents=True, exist_ok=True)  # hosts that share no file system have a folder each
    return out


def _failed(error: BaseException, folder: Path | None, rank: int, step: int, *, aloud: bool) -> int:
    failure = describe(error, rank=rank, step=step)
    noted = folder is not None and leave_note(folder, failure)
    if aloud or not noted:
        print(f"lockstep: {report(failure)}", file=sys.stderr, flush=True)  # noqa: T201
    return 2 if failure.kind == "input" else 1


def leave(code: int) -> None:
    """End the process now: after a failure, threads that wait for a dead peer would keep it alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)
    sys.exit(0)


if __name__ == "__main__":
    from lockstep.launch.spawn import die_with_parent

    die_with_parent()
    leave(work(Path(sys.argv[1])))
