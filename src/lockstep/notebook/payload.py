"""What cells define, on its way to the workers: pickled by value into a private folder, and unpacked in each worker.

    kernel     pack    folder/payload.pickle   1 sys.path   2 the recipe or function   3 definitions, sources of cells
                       folder/array-N.bin      large arrays, mapped by the workers: see large_arrays.py
                       folder/notebook_X.py    a recipe file as any other: it unpacks, and is named in run.json
    worker     unpack  1 so that modules are found   2   3 so that tracebacks show the lines of cells

[Note: whose pickle]
Unpickling runs code, so a pickle must come from somebody who may run code here. This one goes from the user's own
kernel to the user's own workers, as Python's multiprocessing does it, but through a file, because workers may be on
other hosts: in a folder that only this user can enter (0700), in a file that only this user can read and write (0600).
`unpack` opens it without following links, and refuses it if it belongs to another user or others could have written
it. The folder is removed when the run ends; nothing ever unpickles what a run folder holds.
"""

from __future__ import annotations

import functools
import io
import linecache
import os
import pickle
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from lockstep.errors import BadInput
from lockstep.notebook.large_arrays import ArrayFiles, is_large, reduce_array
from lockstep.recipe import Recipe

PAYLOAD = "payload.pickle"
CELLS = "__main__"
"""The module of what cells define."""
_RECIPE_FILE = '''\
"""What a notebook's cells define, for the workers of one run; see lockstep/notebook/payload.py."""

import sys
from pathlib import Path

from lockstep.notebook.payload import recipe_function, unpack

recipe = recipe_function(unpack(Path(__file__).parent, sys.modules[__name__]), {name!r})
'''


class CellPickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    """Pickles what cells define by value, and notes what that was."""

    def __init__(self, file: Any, arrays: ArrayFiles | None = None) -> None:
        super().__init__(file)
        self._arrays = arrays
        self.definitions: dict[str, Any] = {}
        """Classes and functions of cells by name, as far as they are not inside others."""
        self.files: set[str] = set()
        """Where the code of functions stands, as Python calls it."""

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object is pickled."""
        if self._arrays is not None and is_large(obj):
            return reduce_array(obj, self._arrays)
        reduction = super().reducer_override(obj)
        if reduction is not NotImplemented and isinstance(obj, type | FunctionType):
            if obj.__module__ == CELLS and obj.__qualname__.isidentifier():
                self.definitions[obj.__qualname__] = obj
            if isinstance(obj, FunctionType):
                self.files.add(obj.__code__.co_filename)
        return reduction


def pack(value: Any, name: str, folder: Path) -> Path:
    """Write a recipe, or a function, into a private folder; return the recipe file that gives it to workers."""
    with open(os.open(folder / PAYLOAD, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        pickler = CellPickler(file, ArrayFiles(folder))
        pickler.dump([str(Path(entry).absolute()) for entry in sys.path])
        pickler.dump(value)
        definitions = dict(pickler.definitions)
        pickler.dump((definitions, _sources(pickler.files)))
    recipe = folder / f"notebook_{name if name.isidentifier() else 'cell'}.py"
    recipe.write_text(_RECIPE_FILE.format(name=name), encoding="utf-8")
    return recipe


def unpack(folder: Path, module: ModuleType | None = None) -> Any:
    """Return what `pack` was given.

    With a module, what cells define becomes part of it: a DataLoader's own processes then find a class of a cell by the
    name of that module, as they find one of any recipe file.
    """
    with private_file(folder / PAYLOAD) as file:
        unpickler = pickle.Unpickler(file)  # noqa: S301 - see [Note: whose pickle]
        known = set(sys.path)
        sys.path += [entry for entry in unpickler.load() if entry not in known]
        value = unpickler.load()
        definitions, sources = unpickler.load()
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    if module is not None:
        for name, definition in definitions.items():
            definition.__module__ = module.__name__
            setattr(module, name, definition)
    return value


def private_file(path: Path) -> io.BufferedReader:
    """Open a file of this user's that nobody else could have written; see [Note: whose pickle]."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        file.close()
        raise BadInput(f"{path} is not a private file of this user, and is not unpickled: start the cell again")
    return file


def recipe_function(given: Any, name: str) -> Callable[..., Any]:
    """Return the function `recipe` of a recipe file for a recipe or a function that makes one; `name` is its name."""
    if isinstance(given, Recipe):
        return lambda: _named(given, name)

    @functools.wraps(given)
    def recipe(**data: Any) -> Any:
        return _named(given(**data), name)

    return recipe


def _named(made: Any, name: str) -> Any:
    return replace(made, name=name) if isinstance(made, Recipe) and not made.name else made


def _sources(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the lines of cells: what Python knows the text of, though there is no such file."""
    return {name: lines for name in files if not Path(name).exists() and (lines := linecache.getlines(name))}
