"""What a started process does: join the world, train, and write a note if that fails.

    started by one of our launchers   python -m lockstep.launch.worker RUN_FOLDER    (or forked, same function)
    started in another way            `work_here`: the same, after rank 0 has made the run folder

In the first case the starter reports a failure, in the second each rank reports its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import BadInput, Interrupted
from lockstep.launch.interruption import interruption
from lockstep.launch.process_exit import exit_now
from lockstep.launch.rank_output import keep_apart
from lockstep.train.failure import describe, first_note, leave_note, report
from lockstep.train.schema.error_json import Failure
from lockstep.world.detect import detect

if TYPE_CHECKING:
    from lockstep.train.records import Records
    from lockstep.train.spec import RunSpec
    from lockstep.train.stop_signal import StopSignal
    from lockstep.world.host_watch import Vanished
    from lockstep.world.place import Place, World


def work(folder: Path) -> int:
    """Run one rank of the run that a folder describes; return its exit code. The starter reports a failure."""
    from lockstep.train.loop import train
    from lockstep.train.records import Records
    from lockstep.train.same_hosts import check_hosts
    from lockstep.train.schema.run_json import read_setup
    from lockstep.train.stop_signal import Stopped

    rank, records = 0, None
    try:
        place = detect(os.environ)
        rank = place.rank
        keep_apart(os.environ, rank)
        if not folder.is_dir():
            raise BadInput(
                f"the run folder {folder} does not exist on {socket.gethostname()}: choose one with --out on a file "
                "system that all hosts share"
            )
        spec = read_setup(folder).spec
        records = Records(folder, rank)
        with _watching(spec) as stop:
            world = _join(spec, place, LossNote(folder, records))
            check_hosts(spec, world, folder)
            train(spec, world, folder, records, stop)
    except KeyboardInterrupt:
        raise  # the starter, which may be this process, says where it stopped
    except Stopped:
        world.leave()
        return Stopped.exit_code
    except BaseException as error:
        return record_failure(error, folder, rank, records.step if records else -1, print_report=False)
    world.leave()
    return 0


def work_here(
    spec: RunSpec, place: Place, out: Path, again: Mapping[str, Any] | None = None
) -> tuple[int, Path | None]:
    """Run one rank that a launcher, or a user, started directly; it reports its own failure.

    `again` is what was typed, where a run that is in the folder already is to go on. Returns the exit code and the run
    folder, if there is one.
    """
    from lockstep.launch.stall_watch import StallWatch
    from lockstep.train.loop import train
    from lockstep.train.records import Records
    from lockstep.train.same_hosts import check_hosts
    from lockstep.train.stop_signal import Stopped

    records, folder, loss = None, None, LossNote()
    try:
        with _watching(spec) as stop:
            world = _join(spec, place, loss)
            folder, spec, complete = _agree(spec, world, out, again)
            if complete:
                world.leave()
                return 0, folder
            check_hosts(spec, world, folder)
            records = Records(folder, place.rank)
            loss.folder, loss.records = folder, records
            watch = StallWatch(folder, world.size, spec.stall_limit, in_a_rank=True).watching()
            with watch if place.rank == 0 else contextlib.nullcontext():
                train(spec, world, folder, records, stop)
    except Stopped as stopped:
        if place.rank == 0:
            print(f"lockstep: {stopped}", file=sys.stderr, flush=True)  # noqa: T201
        world.leave()
        return Stopped.exit_code, folder
    except KeyboardInterrupt:
        if place.rank == 0:
            text = interruption(folder, str(out)) if folder else "interrupted before anything was started"
            print(f"lockstep: {text}", file=sys.stderr, flush=True)  # noqa: T201
        return Interrupted.exit_code, folder
    except BaseException as error:
        return record_failure(error, folder, place.rank, records.step if records else -1, print_report=True), folder
    world.leave()
    return 0, folder


@contextlib.contextmanager
def _watching(spec: RunSpec) -> Iterator[StopSignal | None]:
    """Note the signal before a time limit from here on, if the run heeds it: also while torch is imported."""
    from lockstep.train.stop_signal import StopSignal

    if not spec.stoppable:
        yield None
        return
    stop = StopSignal()
    with stop.watching():
        yield stop


class LossNote:
    """Notes in the run folder, as far as there is one, which host was lost, and says it."""

    def __init__(self, folder: Path | None = None, records: Records | None = None) -> None:
        self.folder, self.records = folder, records

    def __call__(self, lost: Vanished) -> None:
        """Blame the first rank of that host."""
        step = self.records.step if self.records else -1
        failure = Failure(rank=lost.ranks[0], host=lost.host, step=step, kind="own", text=str(lost), time=time.time())
        if self.folder is not None:
            leave_note(self.folder, failure)
        print(f"lockstep: {report(failure)}", file=sys.stderr, flush=True)  # noqa: T201


def _join(spec: RunSpec, place: Place, loss: LossNote) -> World:
    from lockstep.registry import describe
    from lockstep.world.join import join

    return join(
        device=spec.device,
        backend=spec.backend,
        prefer_shared_memory=describe(spec.strategy).shares_memory,
        threads=spec.threads,
        place=place,
        on_loss=loss,
    )


def _agree(spec: RunSpec, world: World, out: Path, again: Mapping[str, Any] | None) -> tuple[Path, RunSpec, bool]:
    """Let rank 0 check the recipe and make the folder; its error is raised on all ranks.

    Returns the folder, the settings to train with (those of a run that goes on are not all typed), and whether the run
    is complete already.
    """
    import msgspec

    from lockstep.comm.broadcast import broadcast_text
    from lockstep.comm.group import Group
    from lockstep.errors import BadInput
    from lockstep.train.continuing import complete, ready_to_go_on
    from lockstep.train.preflight import preflight
    from lockstep.train.spec import RunSpec

    refusal: BadInput | None = None
    text, ended = "", False
    if world.rank == 0:
        try:
            ended = again is not None and complete(out)
            if not ended:
                spec = spec if again is None else ready_to_go_on(spec, out, again)
                preflight(spec, out)
            text = msgspec.json.encode((str(out.absolute()), spec, ended)).decode()
        except BadInput as error:
            refusal = error
    agreed = broadcast_text(text, Group.everyone(world.device))
    if not agreed:
        raise refusal or BadInput("rank 0 cannot start this run: its message says why")
    name, spec, ended = msgspec.json.decode(agreed, type=tuple[str, RunSpec, bool])
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)  # hosts without a common file system have a folder each
    return folder, spec, ended


def record_failure(error: BaseException, folder: Path | None, rank: int, step: int, *, print_report: bool) -> int:
    """Write a note about this rank's failure, or print it; return the exit code: 2 only if nothing was started."""
    failure = describe(error, rank=rank, step=step)
    noted = folder is not None and leave_note(folder, failure)
    if print_report or not noted:
        print(f"lockstep: {report(failure)}", file=sys.stderr, flush=True)  # noqa: T201
        cause = first_note(folder) if folder is not None and failure.kind == "contact" else None
        if cause is not None and cause.host != failure.host:  # a rank of this host has said it on this terminal
            print(f"lockstep: {report(cause)}", file=sys.stderr, flush=True)  # noqa: T201
    return BadInput.exit_code if failure.kind == "input" and folder is None else 1


if __name__ == "__main__":
    from lockstep.launch.parent_death import die_with_parent, parent_in
    from lockstep.launch.socket_folder import need_sockets
    from lockstep.output import lose_output

    die_with_parent(parent=parent_in(os.environ))
    lose_output()
    need_sockets()
    exit_now(work(Path(sys.argv[1])))
