"""`lockstep sbatch` and `lockstep requeue`: a batch file that fits the site, and its end. No torch."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli_options import Json, stem
from lockstep.errors import BadInput, LockstepError

if TYPE_CHECKING:
    from lockstep.cluster.batch_file import BatchFile
    from lockstep.cluster.request import Request

DECIDED = ("workers", "launcher", "nodes", "out", "rank", "rendezvous", "resume", "launcher_args")
"""Options of `run` that the batch file sets, or that make no sense in it."""
INSTEAD = {"workers": "they are --nodes times --tasks-per-node"}
"""What to type in place of one, where it is not an option of sbatch of the same name."""
RUN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


def sbatch(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(help="file.py, file.py:function or a built-in name; options of `run` follow it.")
    ],
    profile: Annotated[str | None, typer.Option(help="The site: a TOML file, or alvis or zih.")] = None,
    nodes: Annotated[int, typer.Option(help="Hosts.")] = 1,
    tasks_per_node: Annotated[
        int | None, typer.Option(help="Workers of each host.", show_default="one for each GPU, else 1")
    ] = None,
    gpus_per_node: Annotated[str | None, typer.Option(help="GPUs of each host: 4, or with a type, A100:4.")] = None,
    cpus_per_task: Annotated[int | None, typer.Option(help="CPUs of each worker.")] = None,
    mem: Annotated[str | None, typer.Option(help="Memory of each host: 60000 (MB) or 60G.")] = None,
    mem_per_cpu: Annotated[str | None, typer.Option(help="Memory of each CPU, in place of --mem.")] = None,
    time: Annotated[str | None, typer.Option(help="The longest it may take: 1:30:00, 2-12, or minutes.")] = None,
    partition: Annotated[str | None, typer.Option(help="Where.", show_default="the profile's")] = None,
    account: Annotated[str | None, typer.Option(help="Who pays.")] = None,
    array: Annotated[str | None, typer.Option(help="Train once for each of these seeds: 0-3 or 1,5,9.")] = None,
    module: Annotated[list[str] | None, typer.Option(help="Load this module too; can be given more than once.")] = None,
    requeues: Annotated[
        int, typer.Option(help="Start again at most so often, after the time limit or a failure; 0: never.", min=0)
    ] = 3,
    dependent: Annotated[
        bool, typer.Option("--dependent", help="Start again by a dependent job, not by a requeue.")
    ] = False,
    notice: Annotated[int, typer.Option(help="Seconds before the time limit for the last checkpoint.", min=1)] = 90,
    name: Annotated[str | None, typer.Option(help="Of the job.", show_default="the recipe's")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/NAME-JOBID")] = None,
    file: Annotated[Path | None, typer.Option(help="Batch file to write.", show_default="NAME.sbatch")] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print it; nothing is written.")] = False,
    json: Json = False,
) -> None:
    """Write a batch file for Slurm that fits the site; options of `run` that it does not know are passed on."""
    from lockstep.cluster.batch_file import BatchFile, Requeue
    from lockstep.cluster.fitting import fitted, fitted_anywhere
    from lockstep.cluster.profiles import load_profile
    from lockstep.cluster.request import Request, read_gpus, read_memory
    from lockstep.cluster.slurm_commands import refuse_inside_a_job

    if submit and dry_run:
        raise BadInput("--submit and --dry-run exclude each other: submit it, or only look at it")
    if submit:
        refuse_inside_a_job()
    recipe = _checked_recipe(recipe)
    arguments = _checked_arguments(context, recipe)
    gpu, gpus = read_gpus(gpus_per_node) if gpus_per_node is not None else (None, None)
    request = Request(
        name=stem(recipe) if name is None else name,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=cpus_per_task,
        gpus_per_node=gpus,
        gpu=gpu,
        memory_mb=None if mem is None else read_memory(mem, "--mem"),
        memory_per_cpu_mb=None if mem_per_cpu is None else read_memory(mem_per_cpu, "--mem-per-cpu"),
        time=time,
        partition=partition,
        account=account,
        array=array,
    )
    site = None if profile is None else load_profile(profile)
    request, warnings = fitted_anywhere(request) if site is None else fitted(request, site)
    warnings += _run_warnings(request, arguments, requeues)
    batch = BatchFile(
        request=request,
        recipe=recipe,
        arguments=tuple(arguments),
        python=sys.executable,
        path=(file or Path(f"{request.name}.sbatch")).absolute(),
        runs=Path("runs").absolute(),
        out=None if out is None else out.absolute(),
        profile=site,
        modules=tuple(module or ()),
        requeue=Requeue(limit=requeues, notice=notice, dependent=dependent),
        typed=shlex.join(["lockstep", *sys.argv[1:]]),
    )
    _check_text(batch)
    _deliver(batch, warnings, submitted=submit, dry_run=dry_run, json=json)


def requeue(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    limit: Annotated[int, typer.Option(help="How often a run may be started again.", min=0)] = 3,
    batch_file: Annotated[
        Path | None, typer.Option(help="What to submit where the job cannot be requeued, or with --dependent.")
    ] = None,
    dependent: Annotated[bool, typer.Option("--dependent", help="Submit a job that begins after this one.")] = False,
) -> None:
    """Start the Slurm job that this is in again, if its run was stopped or failed; for the end of a batch file."""
    from lockstep.cluster.requeueing import decide, read_ends, start_again

    decision = decide(read_ends(run), limit)
    if not decision.again:
        typer.echo(f"lockstep: the job is not started again: {decision.why}", err=True)
        return
    # first the reason: a requeue ends this process too
    typer.echo(f"lockstep: the job is started again: {decision.why}", err=True)
    typer.echo(f"lockstep: {start_again(run, batch_file=batch_file, dependent=dependent)}", err=True)


def _deliver(batch: BatchFile, warnings: list[str], *, submitted: bool, dry_run: bool, json: bool) -> None:
    """Print the file, or write it and perhaps submit it."""
    from lockstep.cluster.slurm_commands import submit

    text = batch.text()
    job: str | None = None
    for warning in warnings:
        typer.echo(f"lockstep: warning: {warning}", err=True)
    if not dry_run:
        new = not batch.path.exists()
        _write(batch.path, text)
        try:
            job = submit(batch.path) if submitted else None
        except LockstepError:
            if new:
                batch.path.unlink()
            raise
    if json:
        shown: dict[str, Any] = {"file": None if dry_run else str(batch.path), "text": text, "job": job}
        typer.echo(jsonlib.dumps({**shown, "workers": batch.request.workers, "warnings": warnings}, indent=1))
    elif dry_run:
        typer.echo(text, nl=False)
    elif job is not None:
        typer.echo(f"submitted {shown_path(batch.path)} as job {job}; look at it with: lockstep stats {job}")
    else:
        typer.echo(f"wrote {shown_path(batch.path)}; submit it with: sbatch {shlex.quote(shown_path(batch.path))}")


def shown_path(path: Path) -> str:
    """Return a path as it can be typed here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _write(path: Path, text: str) -> None:
    """Write the batch file; one that was written before is replaced, anything else is not."""
    from lockstep.train.records import write_bytes

    if path.exists() and not (path.is_file() and path.read_bytes()[:4096].find(b"# Written by: lockstep") > 0):
        raise BadInput(f"{path} exists and was not written by lockstep sbatch: choose another --file")
    if not path.parent.is_dir():
        raise BadInput(f"--file {path}: there is no folder {path.parent}")
    write_bytes(path, [text.encode()])


def _check_text(batch: BatchFile) -> None:
    """Refuse names that would break out of the line that they stand in."""
    parts = [
        batch.recipe,
        *batch.arguments,
        str(batch.path),
        str(batch.out or ""),
        str(batch.runs),
        *batch.modules,
        batch.typed,
    ]
    for text in parts:
        if not text.isprintable():
            raise BadInput(f"{text!r:.100} has a character that cannot stand in a batch file: use another name")


def _checked_recipe(recipe: str) -> str:
    """Return a recipe as a job finds it; refuse one that is not there, without loading it."""
    from lockstep.errors import nearest
    from lockstep.recipe_file import BUILT_IN

    if recipe in BUILT_IN:
        return recipe
    path, colon, function = recipe.partition(":")
    if not path.endswith(".py") and os.sep not in path:
        raise BadInput(f"the recipe {recipe!r} is neither a file nor built in{nearest(recipe, list(BUILT_IN))}")
    if not Path(path).is_file():
        raise BadInput(f"the recipe file {path} does not exist: check its path")
    return f"{Path(path).absolute()}{colon}{function}"


def _checked_arguments(context: typer.Context, recipe: str) -> list[str]:
    """Return the arguments for `run`, as typed; refuse those that it would refuse, now and not in the queue."""
    root: Any = context.find_root().command
    run = root.get_command(context, "run")
    arguments = list(context.args)
    with run.make_context("run", [recipe, *arguments], parent=context.find_root()) as parsed:
        given = {name: value for name, value in parsed.params.items() if value not in (None, False, "")}
    for option in DECIDED:
        if option in given:
            instead = INSTEAD.get(option, "use the options of sbatch itself")
            raise BadInput(f"--{option.replace('_', '-')} is set by the batch file: {instead}")
    if (extra := [one for one in parsed.args if not one.startswith("-")]) or parsed.args:
        raise BadInput(f"{(extra or parsed.args)[0]!r:.80} is no option of run: see lockstep run --help")
    return arguments


def _run_warnings(request: Request, arguments: list[str], requeues: int) -> list[str]:
    if requeues and not any(one.partition("=")[0] == "--checkpoint-every" for one in arguments):
        return ["without --checkpoint-every N a checkpoint is written only before the time limit, not before a failure"]
    return []
