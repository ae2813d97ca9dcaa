"""What a value is made of: the statements of a script that it needs, and no others.

main():            wanted: net                         train(model, loader):       wanted: model, criterion
  net = Net(8)     <- kept                               for x, y in loader:
  print("hello")                                           out = model(x)          model is a parameter, so the call
  train(net, ...)                                                                  binds it, and main() is sliced too
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.first_recipe.portable import callee
from lockstep.first_recipe.scopes import Scope, assigned_names, own_nodes, read_names, statements_before

CHANGES_NOTHING = {"train", "eval", "to", "cuda", "zero_grad", "step", "backward", "share_memory", "set_epoch"}
"""Methods that a recipe leaves to Lockstep."""


class NotFound(Exception):
    """A value needs something that the script does not show; the text names it."""


@dataclass
class Slice:
    """Statements, and the names of the script's top that they need."""

    statements: list[ast.stmt] = field(default_factory=list)
    """In the order in which they run."""
    free: set[str] = field(default_factory=set)
    """What is left to import."""


def backward_slice(wanted: set[str], statements: Sequence[ast.stmt]) -> Slice:
    """Return the statements that the wanted names need, and the names that are still wanted before them."""
    kept: list[ast.stmt] = []
    wanted = set(wanted)
    modules = {name for one in statements if isinstance(one, ast.Import) for name in assigned_names(one)}
    own = {name for one in statements for name in assigned_names(one)} - modules
    for statement in reversed(statements):
        if isinstance(statement, ast.With) and assigned_names(statement) & wanted:
            inside = backward_slice(wanted, statement.body)
            kept.append(ast.With(items=statement.items, body=inside.statements, lineno=statement.lineno))
            wanted = inside.free | {name for item in statement.items for name in read_names(item.context_expr)}
            wanted -= {name for item in statement.items for name in assigned_names(item)}
        elif assigned_names(statement) & wanted:
            kept.append(statement)
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom | ast.FunctionDef):
                wanted -= assigned_names(statement)  # others may leave the value of before
            wanted |= read_names(statement)
        elif _changes(statement, wanted & own):
            kept.append(statement)
            wanted |= read_names(statement)
    return Slice(kept[::-1], wanted)


def _changes(statement: ast.stmt, wanted: set[str]) -> bool:
    """Say whether a statement changes a wanted value in place: `layers.append(...)`, alone or in a loop."""
    for node in own_nodes(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base = node.func.value
            if isinstance(base, ast.Name) and base.id in wanted and node.func.attr not in CHANGES_NOTHING:
                return isinstance(statement, ast.Expr | ast.For) and _calls(statement, "backward") is None
    return False


def _calls(node: ast.AST, method: str) -> ast.Call | None:
    for one in own_nodes(node):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == method:
            return one
    return None


class Slicer:
    """Slices over the scopes of one script: from a function to whoever calls it, to the top."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self.scopes = scopes
        self.top, self.program = scopes[:2]
        self._calls: dict[Scope, tuple[Scope, ast.Call]] = {}
        """Which call of a function is meant, where a value was followed into it."""

    def needs(self, wanted: set[str], scope: Scope, node: ast.AST | None) -> Slice:
        """Return what the wanted names need where a node runs."""
        if scope.top:
            return Slice([], wanted)
        made = backward_slice(wanted, statements_before(scope.body, node))
        bound = made.free & set(scope.parameters)
        if bound:
            caller, call = self.caller(scope)
            given = bindings(scope, call) or {}
            if lacking := bound - set(given):
                raise NotFound(f"{scope.name}() is called without {', '.join(sorted(lacking))}")
            values = {name: given[name] for name in sorted(bound)}
            outer = self.needs({name for value in values.values() for name in read_names(value)}, caller, call)
            binding = [_assign(name, value) for name, value in values.items() if not _is_name(value, name)]
            made.statements = [*outer.statements, *binding, *made.statements]
            made.free = (made.free - bound) | outer.free
        made = self._attributes(made, scope)
        if scope.name:  # what the program sets at its own level is known in its functions
            running = [one for one in self.program.body if not isinstance(one, ast.For | ast.While)]
            known = made.free & {name for one in running for name in assigned_names(one)}
            if known:
                outer = backward_slice(known, running)
                made.statements = [*outer.statements, *made.statements]
                made.free = (made.free - known) | outer.free
        return made

    def _attributes(self, made: Slice, scope: Scope) -> Slice:
        """Add what makes the attributes of an object: see `flattening.py`."""
        wanted = {name for name in made.free if name.startswith("self_")}
        for other in self.scopes:
            known = wanted & {name for one in other.body for name in assigned_names(one)}
            if known and other is not scope:
                outer = self.needs(known, other, None)
                made = Slice([*outer.statements, *made.statements], (made.free - known) | outer.free)
                wanted -= known
        return made

    def caller(self, scope: Scope) -> tuple[Scope, ast.Call]:
        """Return who calls a function, and the call."""
        if scope in self._calls:
            return self._calls[scope]
        for other in self.scopes:
            for node in other.walk():
                if isinstance(node, ast.Call) and other is not scope and bindings(scope, node) is not None:
                    return other, node
        raise NotFound(f"nothing calls {scope.name}()")

    def follow(self, scope: Scope, caller: Scope, call: ast.Call) -> None:
        """Have values be followed from a function to this call of it."""
        self._calls[scope] = (caller, call)

    def returned(self, call: ast.expr, scope: Scope) -> tuple[ast.expr, Scope, ast.AST] | None:
        """Return what the script's own function returns to a call, and where; None for any other expression."""
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        for function in self.scopes:
            ends = [node for node in function.walk() if isinstance(node, ast.Return) and node.value is not None]
            if function.name == call.func.id and function is not scope and len(ends) == 1:
                self._calls[function] = (scope, call)
                assert ends[0].value is not None
                return ends[0].value, function, ends[0]
        return None

    def _one_of_several(self, statement: ast.stmt, name: str, scope: Scope) -> tuple[ast.expr, Scope, ast.AST] | None:
        """Return where a name of `first, second = function()` got its value."""
        for node in own_nodes(statement):
            place = _place_in(node, name)
            if place is not None and isinstance(node, ast.Assign):
                inside = self.returned(node.value, scope)
                if inside is not None and isinstance(inside[0], ast.Tuple):
                    return inside[0].elts[place], *inside[1:]
        return None

    def value(self, name: str, scope: Scope, node: ast.AST | None) -> tuple[ast.expr, Scope, ast.AST]:
        """Return the expression that a name got its value from, and where."""
        before = scope.body if node is None else statements_before(scope.body, node)
        for statement in reversed(before):
            made = value_in(statement, name)
            if made is not None:
                return made, scope, statement
            one_of_several = self._one_of_several(statement, name, scope)
            if one_of_several is not None:
                return one_of_several
        if name.startswith("self_"):
            for other in self.scopes:
                if other is not scope and any(name in assigned_names(one) for one in other.body):
                    return self.value(name, other, None)
        if name in scope.parameters:
            caller, call = self.caller(scope)
            given = bindings(scope, call) or {}
            if name in given:
                return given[name], caller, call
        elif scope.name:
            return self.value(name, self.program, None)
        elif not scope.top:
            return self.value(name, self.top, None)
        raise NotFound(f"where {name} comes from")


def value_in(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return the expression that a statement, or one inside it, assigns to a name."""
    for node in own_nodes(statement):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if _is_name(target, name):
                    return node.value
                pairs = (target, node.value)
                if all(isinstance(side, ast.Tuple) for side in pairs) and len(pairs[0].elts) == len(pairs[1].elts):  # type: ignore[attr-defined]
                    for part, value in zip(pairs[0].elts, pairs[1].elts, strict=True):  # type: ignore[attr-defined]
                        if _is_name(part, name):
                            return value  # type: ignore[no-any-return]
        elif isinstance(node, ast.AnnAssign) and _is_name(node.target, name) and node.value is not None:
            return node.value
    return None


def _place_in(node: ast.AST, name: str) -> int | None:
    """Return which of several targets of an assignment a name is."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        for place, target in enumerate(node.targets[0].elts):
            if _is_name(target, name):
                return place
    return None


def bindings(scope: Scope, call: ast.Call) -> dict[str, ast.expr] | None:
    """Return what a call gives to a function's parameters, also one by `mp.spawn(function, args=...)`; else None."""
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    if _is_name(call.func, scope.name):
        return dict(zip(scope.parameters, call.args, strict=False)) | named
    if not any(_is_name(part, scope.name) for part in [*call.args[:1], *named.values()]):
        return None
    handed = named.get("args", call.args[1] if len(call.args) > 1 else None)
    values = list(handed.elts) if isinstance(handed, ast.Tuple) else []
    rank: list[ast.expr] = [ast.Constant(0)] if callee(call) in ("spawn", "start_processes") else []
    return dict(zip(scope.parameters, [*rank, *values], strict=False))


def is_built_in(name: str) -> bool:
    """Say whether Python itself knows a name."""
    return hasattr(builtins, name)


def _is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign(targets=[ast.Name(name, ast.Store())], value=value, lineno=getattr(value, "lineno", 0))
