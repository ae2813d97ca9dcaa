"""Where the statements of a script run: at its top, under `if __name__ == "__main__"`, or in a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, eq=False)
class Scope:
    """Statements that run one after another, with names of their own."""

    name: str
    """The function's name; empty for the top of the script and for what is under its `if __name__`."""
    body: Sequence[ast.stmt]
    """The statements."""
    parameters: tuple[str, ...] = ()
    """The function's parameters, in order."""
    top: bool = False
    """Whether an import of the script runs it."""

    def walk(self) -> Iterator[ast.AST]:
        """Yield every node that runs here, and not those of functions and classes that are defined here."""
        for statement in self.body:
            yield from own_nodes(statement)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what runs with it."""
    yield node
    if not isinstance(node, NESTED):
        for child in ast.iter_child_nodes(node):
            yield from own_nodes(child)


def scopes_of(tree: ast.Module) -> list[Scope]:
    """Return the scopes of a script: its top, what runs if it is the program, and its functions."""
    top, guarded = [], []
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            guarded += statement.body
        else:
            top.append(statement)
    functions = [
        Scope(one.name, one.body, tuple(argument.arg for argument in [*one.args.posonlyargs, *one.args.args]))
        for one in tree.body
        if isinstance(one, ast.FunctionDef)
    ]
    return [Scope("", top, top=True), Scope("", guarded), *functions]


def statements_before(body: Sequence[ast.stmt], node: ast.AST | None) -> list[ast.stmt]:
    """Return the statements that run before a node, those around it opened; of no node all of them."""
    before: list[ast.stmt] = []
    for statement in body:
        if node is None or not any(inner is node for inner in ast.walk(statement)):
            before.append(statement)
            continue
        for field in ("body", "orelse", "finalbody"):
            inside = getattr(statement, field, None)
            if isinstance(inside, list) and any(inner is node for one in inside for inner in ast.walk(one)):
                before += statements_before(inside, node)
        break
    return before


def assigned_names(statement: ast.AST) -> set[str]:
    """Return the names that a statement gives a value to, here."""
    names: set[str] = set()
    for node in own_nodes(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def read_names(node: ast.AST) -> set[str]:
    """Return the names that a node needs from outside: what it reads and does not make itself."""
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    inner: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.Lambda):
            given = one.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
            inner |= {argument.arg for argument in every}
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            inner |= {name for statement in one.body for name in assigned_names(statement)}
        if isinstance(one, ast.comprehension):
            inner |= {name.id for name in ast.walk(one.target) if isinstance(name, ast.Name)}
    return read - inner
