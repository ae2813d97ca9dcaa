"""How a recipe is loaded: from a file, a function in it, or by the name of a built-in one."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from lockstep.errors import BadInput, nearest
from lockstep.recipe import Recipe, kind_of

BUILT_IN = ("cifar100", "mlp", "bytes")


def load(reference: str, data: str | None = None) -> Recipe:
    """Load a recipe from `file.py`, `file.py:function` or a built-in name; `data` is passed to its function."""
    path, _, function = reference.partition(":")
    if path in BUILT_IN:
        module, name = importlib.import_module(f"lockstep.recipes.{path}"), path
    elif path.endswith(".py") or "/" in path:
        if Path(path).is_file():
            _check_defined(Path(path), function or "recipe", reference)
        module, name = _execute(Path(path)), Path(path).stem
    else:
        raise BadInput(f"no recipe called {path!r}{nearest(path, list(BUILT_IN))} (or pass a file, such as train.py)")
    return _call(module, function or "recipe", reference, name, data)


class SourceLoader(SourceFileLoader):
    """Compiles a file each time, and keeps nothing.

    Python takes compiled code for that of a file with the same size and time, in whole seconds: after a quick edit it
    would train what the file was before.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file as it is now."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


_EXECUTED: set[str] = set()
"""The names of modules that are recipe files; loading another file of the same name replaces one."""


def _hides(name: str, path: Path) -> bool:
    """Say whether a recipe file would take the place of another module; the same file, imported before, is no other."""
    standing = sys.modules.get(name)
    origin = getattr(standing, "__file__", None)
    return standing is not None and (origin is None or Path(origin).resolve() != path.resolve())


def _execute(path: Path) -> ModuleType:
    if not path.is_file():
        problem = "does not exist" if not path.exists() else "is not a file"
        raise BadInput(f"the recipe file {path} {problem}: pass the path of a Python file")
    name, root = module_name(path.resolve())
    if name not in _EXECUTED and _hides(name, path):
        raise BadInput(
            f"the recipe file {path} has the same name as the module {name!r} and would hide it: rename the file"
        )
    # A recipe's classes are pickled by module name for the processes that a rank starts, such as a DataLoader's
    # workers. Those get this process's sys.path, so the module has the name by which they find its file.
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if path.suffix != ".py":
        raise BadInput(f"{path} is not a Python file: a recipe is a file whose name ends in .py")
    loader = SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    try:
        if package := name.rpartition(".")[0]:
            importlib.import_module(package)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        _EXECUTED.add(name)
        loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"the recipe file {path} raised an error while it was loaded:\n{_trace(error, path)}") from error
    return module


def module_name(path: Path) -> tuple[str, Path]:
    """Return the module name of a recipe file, with its packages, and the folder that contains them."""
    names, root = [path.stem], path.parent
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    return ".".join(names), root


def _call(module: ModuleType, function: str, reference: str, name: str, data: str | None) -> Recipe:
    make = getattr(module, function, None)
    if not callable(make):
        functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        own = [name for name in functions if getattr(module, name).__module__ == module.__name__]
        raise BadInput(_no_function(own, reference, function))
    if data is not None and "data" not in inspect.signature(make).parameters:
        raise BadInput(
            f"{reference} does not accept --data: its {function}() has no parameter `data`; add it, or leave --data out"
        )
    try:
        recipe = make() if data is None else make(data=data)
    except BadInput:
        raise
    except Exception as error:
        where = Path(module.__file__ or "")
        raise BadInput(f"{function}() of {reference} raised an error:\n{_trace(error, where)}") from error
    if not isinstance(recipe, Recipe):
        raise BadInput(
            f"{function}() of {reference} returned {kind_of(recipe)}, expected a lockstep.Recipe: return one"
        )
    return recipe if recipe.name else replace(recipe, name=name)


def _no_function(own: list[str], reference: str, function: str) -> str:
    """Say that there is no such function, and what to do; `own` are the functions of the file itself."""
    text, path = f"{reference} has no function {function}()", reference.partition(":")[0]
    if own and "did you mean" in (hint := nearest(function, own)):
        return f"{text}{hint} Name it: {path}:NAME"
    text += (
        f". A recipe file defines `def recipe() -> lockstep.Recipe`; `lockstep init {path}` writes one from a script"
    )
    return f"{text}. If {' or '.join(own)} returns a lockstep.Recipe, name it: {path}:NAME" if own else text


def _check_defined(path: Path, function: str, reference: str) -> None:
    """Refuse a file without the function before it is executed: a training script would train."""
    try:
        top = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return  # whoever executes it says what is wrong
    nodes = [node for statement in top for node in _of_the_module(statement)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
    aliases = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    bound |= {alias.asname or alias.name for alias in aliases}
    if not bound & {function, "*", "__getattr__"} and not any(_may_bind(node) for node in nodes):
        own = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
        raise BadInput(_no_function(own, reference, function))


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _of_the_module(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, but for what is inside a function or class."""
    yield node
    if not isinstance(node, _DEFINITIONS):
        for below in ast.iter_child_nodes(node):
            yield from _of_the_module(below)


def _may_bind(node: ast.AST) -> bool:
    """Say whether a call could give the module names that are not written in it."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("globals", "exec", "vars")
    )


def _trace(error: Exception, path: Path) -> str:
    """Format a traceback from the user's own file on, without the frames of the import system."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((i for i, frame in enumerate(frames) if Path(frame.filename) == path), len(frames) - 1)
    lines = traceback.format_list(frames[own:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()
