"""`lockstep.notebook.run`: train what cells define, on several workers."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput, Interrupted, RunFailed
from lockstep.launch.rank_output import read_outputs
from lockstep.notebook.cell_input import Trainable, check_settings, check_workers, new_folder, private_folder, trainable
from lockstep.notebook.conversation import Conversation
from lockstep.notebook.following import Following
from lockstep.notebook.returned import returned_value
from lockstep.notebook.screen import Screen, this_screen
from lockstep.notebook.starter_messages import Message, StarterRequest
from lockstep.notebook.trained_run import trained_run
from lockstep.registry import BASELINE, DEFAULT, describe

CALL = "lockstep.notebook.run"
OWN = ["workers", "nodes", "launcher_args", "out", "resume"]
WORKERS = 2
MOST_SHOWN = 4000
"""Characters of each rank's output that are shown after a failure."""


def run(
    what: Any,
    *,
    workers: int | None = None,
    nodes: int | None = None,
    launcher_args: str = "",
    out: str | Path | None = None,
    resume: str | Path | None = None,
    **settings: Any,
) -> Any:
    """Train a recipe, or call a function on every worker, from a cell; return a TrainedRun, or rank 0's value.

    `what` is a lockstep.Recipe, a function that returns one, a recipe file, the name of a built-in recipe, or any other
    function: it is called once on each worker, as a script would be, and joins with `lockstep.join()`.
    Settings have the names that the options of `lockstep run` have: strategy, launcher, lanes, threads, steps, epochs,
    seed, checkpoint_every and so on. The first error of any worker is raised as RunFailed; an interrupt ends all, and
    is raised as Interrupted, a KeyboardInterrupt.
    """
    thing = trainable(what, CALL)
    given = check_settings(settings, CALL, OWN)
    if workers is None and resume is None:
        workers = describe(given.get("strategy", DEFAULT)).workers(WORKERS)
    if workers is not None:
        check_workers(workers, given, nodes)
        given["workers"] = workers
    strategy = given.get("strategy", DEFAULT if workers != 1 else BASELINE)
    if resume is not None and out is not None:
        raise BadInput(f"resume={str(resume)!r} goes on in that folder: leave out= out")
    folder = new_folder(f"{thing.name}-{strategy}") if out is None else Path(out).absolute()
    folder = folder if resume is None else Path(resume).absolute()
    extra, screen = tuple(shlex.split(launcher_args)), this_screen()
    with private_folder(given.get("launcher", "spawn" if resume is None else None), folder) as private:
        request = StarterRequest(
            task="run" if thing.may_be_recipe else "function",
            folder=str(private),
            out=str(folder),
            given={**given, "recipe": thing.packed(private), "progress": False, "monitored": True},
            nodes=nodes,
            launcher_args=extra,
            resume=resume is not None,
        )
        with Following(folder, screen, resumed=request.resume) as following:
            messages = converse(request, screen, following.look)
        if not thing.may_be_recipe and not any(message.kind == "is a recipe" for message in messages):
            return _value(private)
    return _trained(thing, folder, given.get("data"))


def converse(
    request: StarterRequest,
    screen: Screen,
    look: Callable[[], None] = lambda: None,
    hear: Callable[[Message], None] = lambda message: None,
) -> list[Message]:
    """Have a request done; return what the starter told, or raise what became of it."""
    with Conversation(screen) as conversation:
        try:
            conversation.run(request, look, hear)
        except KeyboardInterrupt:
            said = [message.text for message in conversation.messages if message.kind == "interrupted"]
            raise Interrupted(said[0] if said else "interrupted while the workers were started") from None
    last = conversation.messages[-1] if conversation.messages else None
    if last is not None and last.kind == "done":
        return conversation.messages
    if last is not None and last.kind == "refused":
        raise BadInput(last.text)
    for rank, text in read_outputs(Path(request.folder), MOST_SHOWN).items():
        screen.write(f"--- output of rank {rank}\n{text}\n", error=True)
    if last is not None and last.kind == "failed":
        raise RunFailed(last.text)
    raise RunFailed(
        f"the process that starts the workers ended with exit code {conversation.code}; what it printed last says why. "
        f"Its Python is {sys.executable}: it needs the packages of this kernel"
    )


def _value(private: Path) -> Any:
    value, lost = returned_value(private)
    if lost:
        warnings.warn(f"rank 0's value did not come back: {lost}", stacklevel=3)
    return value


def _trained(thing: Trainable, folder: Path, data: str | None) -> Any:
    from lockstep.report.collect import read_finished

    return trained_run(read_finished(folder), partial(thing.recipe, data), of_cells=not isinstance(thing.value, str))
