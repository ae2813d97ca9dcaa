"""What a cell asks for: the thing to train, and the settings; checked before anything is started."""

from __future__ import annotations

import functools
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from shutil import rmtree
from types import FunctionType
from typing import Any, get_type_hints

import msgspec

from lockstep.errors import BadInput, nearest
from lockstep.notebook.blame import blame, names_in
from lockstep.notebook.payload import pack, recipe_function
from lockstep.recipe import Recipe
from lockstep.recipe_file import load
from lockstep.registry import LAUNCHERS
from lockstep.settings import option_of
from lockstep.train.spec import RunSpec, stem
from lockstep.world.resources import local_workers, usable_cpus

OWN_LOOP = {"join", "Trainer", "init_process_group"}
"""Names in a function that trains by itself."""


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """What is to be trained."""

    value: Recipe | Callable[..., Any] | str
    """As it was given."""
    name: str
    """For folders and reports."""
    variable: str
    """What the user calls it."""
    may_be_recipe: bool
    """Whether it is a recipe, or says that it makes one; of another function the workers find out."""

    def packed(self, folder: Path) -> str:
        """Return the reference of a recipe, or the file that holds a function, for the workers."""
        if isinstance(self.value, str):
            return self.value
        try:
            return str(pack(self.value, self.name, folder))
        except BadInput:
            raise
        except Exception:
            raise BadInput(blame(self.value, self.variable)) from None

    def recipe(self, data: str | None) -> Recipe:
        """Return the recipe in this process."""
        if isinstance(self.value, str):
            return load(self.value, data)
        made: Recipe = recipe_function(self.value, self.name)(**({} if data is None else {"data": data}))
        return made


def trainable(value: Any, call: str) -> Trainable:
    """Return what is to be trained; refuse what nothing can be made of. `call` is the function of a cell."""
    if isinstance(value, str | Path):
        path, colon, function = str(value).partition(":")
        is_file = path.endswith(".py") or "/" in path
        if is_file and not Path(path).is_file():
            raise BadInput(f"the recipe file {path} does not exist: pass the path of a Python file")
        reference = f"{Path(path).absolute()}{colon}{function}" if is_file else str(value)
        return Trainable(value=reference, name=stem(reference), variable=str(value), may_be_recipe=True)
    if isinstance(value, Recipe):
        variable = variable_of(value) or "recipe"
        made = value.name or getattr(value.model, "__name__", "")
        return Trainable(
            value=value, name=made if made.isidentifier() else variable, variable=variable, may_be_recipe=True
        )
    if isinstance(value, type) or hasattr(value, "named_parameters") or not callable(value):
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise BadInput(
            f"{call} got {kind}, expected a lockstep.Recipe, a function, a recipe file or the name of a built-in "
            "recipe: lockstep.Recipe(model=Net, data=..., loss=..., optimizer=..., global_batch=...)"
        )
    function = getattr(value, "func", value)
    name = getattr(function, "__name__", type(value).__name__)
    variable = variable_of(value) or name
    return Trainable(
        value=value,
        name=name if name.isidentifier() else variable if variable.isidentifier() else "function",
        variable=variable,
        may_be_recipe=makes_recipe(function),
    )


def makes_recipe(function: Any) -> bool:
    """Say whether a function shows that it returns a recipe: by annotation, or as it makes one and joins nothing.

    That only saves a start: of a function that does not show it, the workers find out.
    """
    hint = getattr(function, "__annotations__", {}).get("return")
    if hint is Recipe or (isinstance(hint, str) and hint.rpartition(".")[2] == "Recipe"):
        return True
    names = names_in(function.__code__) if isinstance(function, FunctionType) else set()
    return "Recipe" in names and not names & OWN_LOOP


def variable_of(value: Any) -> str:
    """Return the name of the cell's variable that holds a value; empty if there is none."""
    cells = vars(sys.modules["__main__"])
    return next((name for name, held in list(cells.items()) if held is value and not name.startswith("_")), "")


@functools.cache
def known_settings() -> Mapping[str, Any]:
    """Return the settings that a cell can give, by name, with their types: those of the command line."""
    hints = get_type_hints(RunSpec, include_extras=True)
    plain = get_type_hints(RunSpec)
    return {field.name: plain[field.name] for field in fields(RunSpec) if option_of(hints[field.name]) is not None}


def check_settings(settings: Mapping[str, Any], call: str, own: list[str]) -> dict[str, Any]:
    """Return the settings as a spec holds them; refuse unknown names and values of another kind. None is left out."""
    known, given = known_settings(), {}
    for name, value in settings.items():
        if name not in known:
            raise BadInput(f"{call} has no setting {name!r}{nearest(name, [*known, *own])}")
        if value is None:
            continue
        if name == "threads":
            given[name] = str(value)  # a number, or `all`
            continue
        plain = str(Path(value).absolute()) if isinstance(value, Path) or name == "data" else value
        try:
            given[name] = msgspec.convert(plain, known[name])
        except msgspec.ValidationError as error:
            raise BadInput(f"{call} got {name}={value!r:.80}: {str(error).lower()}") from None
    return given


def check_workers(workers: Any, given: Mapping[str, Any], nodes: int | None) -> None:
    """Refuse a number of workers that is none; warn if they and their threads are more than this host's CPUs."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise BadInput(f"found workers={workers!r:.80}, expected a whole number from 1 up")
    launcher = given.get("launcher", "spawn")
    if launcher in LAUNCHERS and not LAUNCHERS.get(launcher).this_host:
        return  # other hosts have other CPUs
    threads, cpus, count = given.get("threads", "1"), usable_cpus(), local_workers(workers, nodes)
    needed = count * (int(threads) if threads.isdecimal() else 1)
    if needed > cpus:
        each = "" if needed == count else f" of {threads} threads"
        warnings.warn(
            f"{count} workers{each} on {cpus} CPUs: they will take turns, which is slow; use workers={cpus} or fewer",
            stacklevel=3,
        )


def new_folder(name: str) -> Path:
    """Return a folder for results that does not exist yet: cells run again and again, also within a second."""
    first = Path("runs").absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    numbered = (first.with_name(f"{first.name}-{number}") for number in range(2, 10_000))
    return next(path for path in (first, *numbered) if not path.exists())


@contextmanager
def private_folder(launcher: str | None, out: Path) -> Iterator[Path]:
    """Make a folder that only this user can enter, and every worker can; it is removed at the end.

    The launcher is None for a run that goes on: it may be the one that it was started with.
    """
    beside = None  # the system's own place for such folders
    if launcher is None or (launcher in LAUNCHERS and not LAUNCHERS.get(launcher).this_host):
        beside = out.parent  # other hosts see the run folder, so they see this
        try:
            beside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot make the folder {beside}: {error.strerror}. Choose another out=") from error
    folder = Path(tempfile.mkdtemp(prefix="lockstep-notebook-", dir=beside))
    try:
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)
