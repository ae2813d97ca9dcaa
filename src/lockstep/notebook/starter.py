"""The process between a kernel and its workers: a clean interpreter that starts them, as the command line would.

    kernel --- request (stdin) --> starter --- launch/ --> workers, wherever the launcher starts them
           <-- messages (a pipe) --        <-------------- run folder, notes on failures
           <-- output (two pipes) ------------------------ rank 0, live; the other ranks write files: launch/rank_output

It is never forked from the kernel: whatever the kernel has done with torch, a device or threads is not in it. It has a
session of its own, so an interrupt of the kernel reaches only the kernel, which passes it on. If the kernel is killed,
it ends its workers and removes the private folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from lockstep.errors import BadInput, Interrupted, LockstepError, RunFailed
from lockstep.notebook.starter_messages import Message, StarterRequest

if TYPE_CHECKING:
    from types import FrameType

    from lockstep.launch.base import Outcome
    from lockstep.launch.start import LauncherOptions

FUNCTION_RANK = "lockstep.notebook.function_rank"
REMOVAL_SECONDS = 5.0


class Teller:
    """Tells the kernel something, a line each."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._pipe = os.fdopen(descriptor, "wb")

    def __call__(self, message: Message) -> None:
        """Send a message; a kernel that is gone does not matter, its end ends this process."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(msgspec.json.encode(message) + b"\n")
            self._pipe.flush()


def main() -> NoReturn:
    """Do what the kernel asks for, and tell it how that ended."""
    from lockstep.launch.parent_death import die_with_parent
    from lockstep.output import lose_output

    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tell, parent = Teller(int(sys.argv[1])), int(sys.argv[2])
    die_with_parent(signal.SIGTERM, parent)
    lose_output()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=StarterRequest)
    try:
        last = _answer(request, tell)
    except SystemExit:
        # The kernel is gone, or going: the signal comes when its thread that started this process ends, perhaps before
        # its others. So its number tells nothing yet, and it will not remove the folder.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _remove(Path(request.folder))
        raise
    tell(last)
    sys.exit(0)


def _remove(folder: Path) -> None:
    """Remove the private folder, also where a worker that is just ending still writes to it."""
    until = time.monotonic() + REMOVAL_SECONDS
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def _answer(request: StarterRequest, tell: Teller) -> Message:
    """Do it, and return the last message."""
    try:
        if request.task == "compare":
            return Message(kind="done", text=_compare(request, tell))
        if request.task == "run" or _call(request, tell):
            _train(request)
    except BadInput as error:
        return Message(kind="refused", text=str(error))
    except LockstepError as error:
        return Message(kind="failed", text=str(error))
    except KeyboardInterrupt as error:
        return Message(kind="interrupted", text=str(error) if isinstance(error, Interrupted) else "interrupted")
    return Message(kind="done")


def _options(request: StarterRequest) -> LauncherOptions:
    from lockstep.launch.start import LauncherOptions

    return LauncherOptions(nodes=request.nodes, extra=request.launcher_args)


def _train(request: StarterRequest) -> None:
    """Train a recipe, as `lockstep run` does."""
    from lockstep.cli_options import with_threads
    from lockstep.launch.start import start_run
    from lockstep.strategies import check_exact
    from lockstep.train.resume import read_standing, resumed_spec
    from lockstep.train.spec import new_spec
    from lockstep.world.resources import local_workers

    out = Path(request.out)
    standing = read_standing(out) if request.resume else None
    workers = request.given.get("workers", standing.setup.spec.workers if standing else 1)
    given = with_threads(request.given, local_workers(workers, request.nodes))
    spec = new_spec(given) if standing is None else resumed_spec(standing, given)
    check_exact(spec.strategy, spec.exact)
    start_run(spec, out, _options(request))


def _call(request: StarterRequest, tell: Teller) -> bool:
    """Call a function on every worker; say whether it turned out to be one that makes a recipe."""
    from lockstep.launch.script import Program, start_script
    from lockstep.notebook.returned import returned_recipe

    folder, given = Path(request.folder), request.given
    workers, launcher = given.get("workers", 1), given.get("launcher", "spawn")
    script = ("-m", FUNCTION_RANK, str(folder))
    outcome = start_script(Program(script=script), workers, launcher, given.get("threads"), _options(request))
    if outcome.code:
        raise RunFailed(_why(folder, outcome, launcher))
    if not returned_recipe(folder):
        return False
    tell(Message(kind="is a recipe"))
    return True


def _why(folder: Path, outcome: Outcome, launcher: str) -> str:
    """Return the first cause of a function's failure: a rank's own error, else a death, else lost contact."""
    from lockstep.train.failure import how_it_ended, report
    from lockstep.train.schema.error_json import read_failures

    notes = read_failures(folder)
    own = next((note for note in notes if note.kind != "contact"), None)
    silent = next(((rank, code) for rank, code in outcome.exits.items() if rank not in {n.rank for n in notes}), None)
    if own is None and silent is not None:
        return f"rank {silent[0]} failed: {how_it_ended(silent[1])}"
    if own or notes:
        return report(own or notes[0], counts_steps=False)
    return f"{launcher} ended with exit code {outcome.code}"


def _compare(request: StarterRequest, tell: Teller) -> str:
    """Train a recipe several ways, as `lockstep compare` does; return why not every repeat ran, if so."""
    from lockstep.cli_options import with_threads
    from lockstep.comparison.display import Display
    from lockstep.comparison.new_plan import Rows, asked_strategies, judged, new_plan
    from lockstep.comparison.plan import write_plan
    from lockstep.comparison.run import run_all
    from lockstep.notebook.report_frame import write_table
    from lockstep.report.files import write_all
    from lockstep.train.records import create_folder
    from lockstep.world.resources import choose_threads

    class Lines(Display):
        """Tells its lines to the kernel."""

        def _say(self, text: str) -> None:
            tell(Message(kind="say", text=text))

    rows = Rows(asked_strategies(request.strategies, peers=request.peers), sorted(request.workers), request.lanes)
    given = {"threads": str(choose_threads(os.environ)[0]), **request.given}
    plan = new_plan(with_threads(given, max(rows.workers)), rows, request.repeats, request.time_limit, request.command)
    folder = create_folder(Path(request.out))
    write_plan(folder, plan)
    ran = run_all(plan, folder, Lines(len(plan.ways) * plan.repeats, plan.repeats))
    comparison = judged(plan, ran)
    write_all(comparison, folder)
    write_table(comparison, Path(request.folder))
    if ran.interrupted:
        raise Interrupted(f"interrupted; what had been run is in {folder}")
    if not any(way.runs for way in ran.ways):
        raise RunFailed("no way ran to its end:\n" + "\n".join(f"{way.name}: {way.why_not}" for way in ran.ways))
    return ran.stopped


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that what was started is ended on the way out


if __name__ == "__main__":
    main()
