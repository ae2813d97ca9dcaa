"""One run from spec to end: check, start, wait, and report the first failure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import BadInput, RunFailed
from lockstep.launch import find
from lockstep.launch.base import Job
from lockstep.launch.self_launching import ITSELF, SelfLaunching
from lockstep.registry import LAUNCHERS, PeerDescription, describe
from lockstep.train.failure import first_cause, report
from lockstep.train.records import CannotWrite, write_document
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.result_json import Failed
from lockstep.world.resources import usable_cpus

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from lockstep.train.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What only srun and mpirun need to know."""

    nodes: int | None = None
    """Over how many hosts."""
    extra: tuple[str, ...] = ()
    """More arguments for them, as typed."""


def start_run(spec: RunSpec, out: Path, reach: Reach = Reach()) -> Path:  # noqa: B008 - a frozen value
    """Run a recipe under the launcher that the spec names; return the run folder.

    1. Find the launcher: absent programs are refused first.
    2. Check the recipe and make the run folder, before any worker starts.
    3. Start and wait.
    4. A failure becomes one report, and the run folder's result says so too.
    """
    description = describe(spec.strategy)
    spec, out = with_own_launch(spec), out.absolute()
    count = description.processes(spec.workers)
    launcher = SelfLaunching() if spec.launcher == ITSELF else find(spec.launcher, count)
    if spec.launcher == "inline":
        from lockstep.train.preflight import preflight

        preflight(spec, out)
    else:
        _preflight_apart(spec, out)
    job = Job(workers=count, folder=out, nodes=reach.nodes, threads=spec.threads, extra=reach.extra)
    if isinstance(description, PeerDescription):
        job = replace(job, module=description.program)
    outcome = launcher.start(job)
    if outcome.code == 0 and (out / RESULT).is_file():
        return out
    cause = first_cause(out, count, outcome.exits)
    text = report(cause)
    try:
        failed = Failed(rank=cause.rank, step=cause.step, finite=cause.kind != "loss", why=text)
        write_document(out / RESULT, failed)
    except CannotWrite as error:
        text += f"\n({error})"
    raise BadInput(text) if cause.kind == "input" else RunFailed(text)


def with_own_launch(spec: RunSpec) -> RunSpec:
    """Return the spec as a peer is started: by what its makers document, with the threads that ours would get."""
    description = describe(spec.strategy)
    if not isinstance(description, PeerDescription):
        return spec
    threads = spec.threads or max(1, usable_cpus() // max(1, spec.workers))
    return replace(spec, launcher=description.launcher or ITSELF, threads=threads)


def _preflight_apart(spec: RunSpec, out: Path) -> None:
    """Check in a process of the fork server: the recipe needs torch, and this process does without."""
    from lockstep.launch.spawn import context

    # A peer that starts itself forks nothing from the server, but most often stands in a comparison with ways that do.
    forks = context(trains=spec.launcher == ITSELF or LAUNCHERS.get(spec.launcher).forks)
    reader, writer = forks.Pipe(duplex=False)
    checker = forks.Process(target=_check, args=(spec, out, writer), name="lockstep preflight")
    checker.start()
    writer.close()
    try:
        refused: str | None = reader.recv()
    except EOFError:
        checker.join()
        refused = f"the recipe {spec.recipe} ended the process that read it (exit code {checker.exitcode})"
    except BaseException:
        checker.kill()
        raise
    finally:
        reader.close()
        checker.join()
        checker.close()
    if refused is not None:
        raise BadInput(refused)


def _check(spec: RunSpec, out: Path, writer: Connection) -> None:
    from lockstep.launch.parent_death import die_with_starter
    from lockstep.train.preflight import preflight

    die_with_starter()
    try:
        preflight(spec, out)
    except BadInput as error:
        writer.send(str(error))
    else:
        writer.send(None)
