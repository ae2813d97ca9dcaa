"""One name for one thing: classes and modules of the source, and no value that is named for how it was got."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"

NOT_YET: tuple[str, ...] = ()
"""Folders and files whose own names are still being changed; a name that they share with others is not counted."""

CLASSES_ALLOWED: dict[str, str] = {}
"""Class names that may occur twice, each with the reason."""

MODULES_ALLOWED = {
    "__init__.py": "Python's own name",
    "base.py": "the contract of the modules beside it",
    "strategy.py": "the implementation of the strategy whose folder it is in",
    "program.py": "the program of the peer whose folder it is in",
    "process_group.py": "torch_compat names its modules after the parts of torch that they wrap",
    "tensors.py": "torch_compat names its modules after the parts of torch that they wrap",
}
"""File names that may occur twice, each with the reason."""


def checked() -> Iterator[Path]:
    for path in sorted(SOURCE.rglob("*.py")):
        top = path.relative_to(SOURCE).parts[0]
        if not any(Path(top).match(pattern) for pattern in NOT_YET):
            yield path


def names_bound(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a file binds: variables, parameters, functions, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def shared(places: dict[str, list[str]], allowed: dict[str, str]) -> dict[str, list[str]]:
    return {name: where for name, where in places.items() if len(where) > 1 and name not in allowed}


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in checked():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert shared(places, CLASSES_ALLOWED) == {}


def test_no_two_modules_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in checked():
        places[path.name].append(str(path.relative_to(SOURCE)))
    assert shared(places, MODULES_ALLOWED) == {}


def test_no_value_is_named_found() -> None:
    holders = [
        str(path.relative_to(SOURCE)) for path in checked() if "found" in names_bound(ast.parse(path.read_text()))
    ]
    assert holders == []
