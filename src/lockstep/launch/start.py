"""One run from its spec to its end: check, start, wait, and report the first failure."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import process_wide
from lockstep.errors import BadInput, BadRecipe, Interrupted, RunFailed
from lockstep.launch import find
from lockstep.launch.base import Job
from lockstep.launch.interruption import how_to_go_on, interruption
from lockstep.launch.self_launching import ITSELF, SelfLaunching
from lockstep.launch.stall_watch import StallWatch
from lockstep.registry import PeerDescription, describe
from lockstep.registry.base import import_object
from lockstep.registry.peers import PREPARED
from lockstep.train.failure import first_cause, report
from lockstep.train.folder_lock import starting
from lockstep.train.records import CannotWrite, write_document
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.result_json import Failed
from lockstep.train.schema.run_json import read_setup
from lockstep.train.stack_dump import remove_empty
from lockstep.train.stop_signal import Stopped, stopped_after, stopped_text
from lockstep.world.resources import choose_threads

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from lockstep.train.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class LauncherOptions:
    """Options of srun and mpirun only."""

    nodes: int | None = None
    """The number of hosts."""
    extra: tuple[str, ...] = ()
    """More arguments for srun or mpirun, as typed."""


def start_run(spec: RunSpec, out: Path, options: LauncherOptions = LauncherOptions()) -> Path:
    """Run a recipe under the launcher that the spec names; return the run folder.

    1. Find the launcher: a missing program is an error before anything else.
    2. Check the recipe and make the run folder, before any worker starts.
    3. Start the processes and wait.
    4. A failure becomes one report, which is also in the run folder's result.
    """
    description, typed = describe(spec.strategy), str(out)
    spec, out = with_own_launch(with_threads(spec)), out.absolute()
    count = description.processes(spec.workers)
    launcher = SelfLaunching() if spec.launcher == ITSELF else find(spec.launcher, count)
    try:
        _check_first(spec, out)
    except KeyboardInterrupt:
        raise Interrupted("interrupted before anything was started") from None
    job = Job(workers=count, folder=out, nodes=options.nodes, threads=spec.threads, extra=options.extra)
    job = replace(job, stoppable=spec.stoppable)
    if isinstance(description, PeerDescription):
        python = import_object(description.python)() if description.python else job.python
        job = replace(job, module=description.program, python=python)
    try:
        with starting(out), StallWatch(out, count, spec.stall_limit).watching():
            outcome = launcher.start(job)
    except KeyboardInterrupt:
        raise Interrupted(interruption(out, typed)) from None
    finally:
        shutil.rmtree(out / PREPARED, ignore_errors=True)
    if outcome.code == 0 and (out / RESULT).is_file():
        return out
    remove_empty(out)
    if (steps := stopped_after(out)) is not None:
        raise Stopped(stopped_text(out, steps))
    cause = first_cause(out, count, outcome.exits, outcome.hosts)
    text = report(cause, read_setup(out).plan.steps)
    try:
        failed = Failed(rank=cause.rank, step=cause.step, finite=cause.kind != "loss", why=text)
        write_document(out / RESULT, failed)
    except CannotWrite as error:
        text += f"\n({error})"
    if cause.kind != "loss" and (further := how_to_go_on(out, typed)):  # a loss that is no number would be none again
        text += f"\n{further}"
    raise RunFailed(text)


def with_own_launch(spec: RunSpec) -> RunSpec:
    """Return the spec of a peer with its documented launcher."""
    description = describe(spec.strategy)
    if not isinstance(description, PeerDescription):
        return spec
    return replace(spec, launcher=description.launcher or ITSELF)


def with_threads(spec: RunSpec) -> RunSpec:
    """Return the spec with its number of threads, so that every rank, wherever it runs, has the same."""
    if spec.threads is not None or process_wide.leave("threads"):
        return spec
    return replace(spec, threads=choose_threads(os.environ)[0])


def _check_first(spec: RunSpec, out: Path) -> None:
    """Check the recipe and make the run folder: in this process if it is the one that trains."""
    if spec.launcher == "inline":
        from lockstep.train.preflight import preflight

        preflight(spec, out)
    else:
        _preflight_in_server(spec, out)


def _preflight_in_server(spec: RunSpec, out: Path) -> None:
    """Check in a process of the fork server: the recipe needs torch, which this process does not import."""
    from lockstep.launch.spawn import context, server_number, start_forked

    # A peer that starts itself forks nothing from the server, but is usually compared with strategies that do.
    forks = context()
    reader, writer = forks.Pipe(duplex=False)
    checker = forks.Process(target=_check, args=(spec, out, writer, server_number()), name="lockstep preflight")
    start_forked(checker)
    writer.close()
    try:
        refusal: BadInput | None = reader.recv()
    except EOFError:
        checker.join()
        refusal = BadRecipe(
            f"the recipe {spec.recipe} ended the process that loaded it (exit code {checker.exitcode}): "
            "run it with Python alone to find the cause"
        )
    except BaseException:
        checker.kill()
        raise
    finally:
        reader.close()
        checker.join()
        checker.close()
    if refusal is not None:
        raise refusal


def sendable(error: BadInput) -> BadInput:
    """Return a refusal as it can cross a pipe: of others' errors only the text, and where in Lockstep it was raised."""
    kind = BadRecipe if isinstance(error, BadRecipe) else BadInput
    sent = kind(str(error))
    sent.raised_in = tuple(error.modules())
    return sent


def _check(spec: RunSpec, out: Path, writer: Connection, server: int | None) -> None:
    from lockstep.launch.parent_death import die_with_starter
    from lockstep.output import lose_output
    from lockstep.torch_compat.startup import drop_empty_compiler_cache
    from lockstep.train.preflight import preflight

    die_with_starter(server=server)
    lose_output()
    try:
        preflight(spec, out)
    except BadInput as error:
        writer.send(sendable(error))
    else:
        writer.send(None)
    drop_empty_compiler_cache()
