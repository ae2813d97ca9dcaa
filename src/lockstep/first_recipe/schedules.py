"""The learning-rate schedule of a script: what makes it, and how often its `step()` is called.

for epoch in ...:
    for x, y in loader:
        ...
        optimizer.step()
        warm.step()           once a batch: as the schedule of a recipe
    slower.step()             once an epoch: `lockstep.once_an_epoch` makes a schedule of a recipe of it

Anything else (a metric, a condition, another place) is left to the user, with the reason.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from lockstep.first_recipe.loops import makes_schedule
from lockstep.first_recipe.portable import callee
from lockstep.first_recipe.recipe_parts import RecipePart, RecipeParts, TrainingLoop
from lockstep.first_recipe.scopes import Scope, own_nodes, read_names
from lockstep.first_recipe.slices import NotFound, backward_slice, value_in
from lockstep.first_recipe.training_script import TrainingScript

EPOCH_STEPS = "EPOCH_STEPS"
"""The name that a recipe has for the batches of an epoch."""
ONCE_AN_EPOCH = "lockstep.once_an_epoch"


def find_schedule(script: TrainingScript, training: TrainingLoop, parts: RecipeParts) -> None:
    """Add the schedule to the parts, or why it is left out; nothing if the script has none."""
    every = [node for scope in script.scopes for node in scope.walk() if makes_schedule(node)]
    if not every:
        return
    made = every[0]
    try:
        steps = list(_step_calls(script))
        if not steps:
            raise NotFound("nothing calls its step()")
        made, scope, at = steps[0][0]
        if any(other[0] is not made for other, *_ in steps):
            lines = " and ".join(str(line) for line in sorted({other[0].lineno for other, *_ in steps}))
            raise NotFound(f"there are several, made in lines {lines}")
        if len(steps) > 1:
            raise NotFound("its step() is called in several places")
        per_epoch = _is_per_epoch(script, training, steps[0][1], steps[0][2])
        part = _schedule_part(script, training, made, scope, at)
    except NotFound as reason:
        parts.left_out["schedule"] = f"{callee(made)}, line {getattr(made, 'lineno', 0)}: {reason}"
        return
    part.remark = "The script advances it with its optimizer, and so does a recipe."
    if per_epoch:
        part.remark = (
            "The script advances it once an epoch, and a recipe once a step: once_an_epoch() counts the steps."
        )
        call = ast.parse(f"{ONCE_AN_EPOCH}(x, {EPOCH_STEPS})", mode="eval").body
        assert isinstance(call, ast.Call)
        call.args[0] = part.value
        part.value = call
    parts.optional["schedule"] = part


Made = tuple[ast.Call, Scope, ast.AST | None]


def _step_calls(script: TrainingScript) -> Iterator[tuple[Made, Scope, ast.Call]]:
    """Yield the schedules whose `step()` is called, and where that is."""
    for scope in script.scopes:
        for node in scope.walk():
            if isinstance(node, ast.Call) and callee(node) == "step" and isinstance(node.func, ast.Attribute):
                made, where, at = script.root(node.func.value, scope, node)
                if isinstance(made, ast.Call) and makes_schedule(made):
                    yield (made, where, at), scope, node


def _is_per_epoch(script: TrainingScript, training: TrainingLoop, scope: Scope, call: ast.Call) -> bool:
    """Say whether `step()` is called once an epoch, not once a batch; anything else is not sure."""
    if call.args or call.keywords:
        raise NotFound(f"line {call.lineno} gives its step() a value, which a recipe does not have")
    if any(node is call for node in ast.walk(training.loop)):
        beside = _body_around(training.loop, call)
        steps = [one for one in beside if callee(getattr(one, "value", one)) == "step"]
        if beside is not training.loop.body and len(steps) < 2:  # the optimizer's own step is not beside it
            raise NotFound(f"line {call.lineno} calls its step() under a condition")
        return False
    where, node = training.scope, training.loop
    inner: ast.AST = node
    for _ in range(len(script.scopes)):
        around = [one for one in where.walk() if isinstance(one, ast.For) and _within(inner, one.body)]
        bodies: list[Sequence[ast.stmt]] = [one.body for one in around[-1:]] or [where.body]
        if scope is where and _follows(bodies[0], inner, call):
            return True
        if around:
            break
        where, inner = script.slicer.caller(where)
    raise NotFound(f"line {call.lineno} calls its step() neither after each batch nor at the end of each epoch")


def _body_around(loop: ast.For, call: ast.Call) -> Sequence[ast.stmt]:
    """Return the statements among which the one that is a call stands."""
    for node in ast.walk(loop):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and any(isinstance(one, ast.Expr) and one.value is call for one in body):
                return body
    return []


def _follows(body: Sequence[ast.stmt], node: ast.AST, call: ast.Call) -> bool:
    """Say whether a call is a statement of a body, after the one that holds a node."""
    places = [place for place, one in enumerate(body) if _within(node, [one])]
    calls = [place for place, one in enumerate(body) if isinstance(one, ast.Expr) and one.value is call]
    return bool(places and calls) and places[0] < calls[0]


def _within(node: ast.AST, body: Sequence[ast.stmt]) -> bool:
    return any(inner is node for one in body for inner in own_nodes(one))


def _schedule_part(
    script: TrainingScript, training: TrainingLoop, made: ast.Call, scope: Scope, at: ast.AST | None
) -> RecipePart:
    """Return a function that makes the schedule of a given optimizer."""
    value = copy.deepcopy(made)
    first = made.args[0] if made.args else next((one.value for one in made.keywords if one.arg == "optimizer"), None)
    if first is None or script.root(first, scope, at)[0] is not training.optimizer:
        raise NotFound("it is not sure that its optimizer is the one of the recipe")
    given = ast.Name("optimizer", ast.Load())
    if made.args:
        value.args[0] = given
    else:
        value.keywords = [
            ast.keyword(one.arg, given if one.arg == "optimizer" else one.value) for one in value.keywords
        ]
    needs = script.slicer.needs(read_names(value) - {"optimizer"}, scope, at).statements
    statements = script.portable.statements([_given_optimizer(one, training.optimizer) for one in needs])
    value = _EpochSteps(script, training, statements).visit(script.portable.expression(value))
    statements = [_EpochSteps(script, training, statements).visit(copy.deepcopy(one)) for one in statements]
    statements = backward_slice(read_names(value), statements).statements
    for node in (node for one in statements for node in ast.walk(one)):
        if callee(node) in ("parameters", "named_parameters"):
            raise NotFound("it is not sure that its optimizer is the one of the recipe")
    statements = [ast.fix_missing_locations(one) for one in statements]
    return RecipePart(made.lineno, statements, value, what=callee(made))


def _given_optimizer(statement: ast.stmt, optimizer: ast.Call | None) -> ast.stmt:
    """Have a statement that makes the optimizer take the given one."""
    if not (isinstance(statement, ast.Assign) and statement.value is optimizer):
        return statement
    return ast.copy_location(ast.Assign(statement.targets, ast.Name("optimizer", ast.Load())), statement)


class _EpochSteps(ast.NodeTransformer):
    """`len(loader)` becomes `EPOCH_STEPS`, if that is the loader of the loop that trains."""

    def __init__(self, script: TrainingScript, training: TrainingLoop, statements: Sequence[ast.stmt]) -> None:
        self.statements = statements
        self.loader = ast.unparse(script.portable.expression(training.loader))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace the number of batches."""
        if callee(node) == "len" and len(node.args) == 1 and ast.unparse(self._root(node.args[0])) == self.loader:
            return ast.copy_location(ast.Name(EPOCH_STEPS, ast.Load()), node)
        return self.generic_visit(node)

    def _root(self, node: ast.expr) -> ast.expr:
        for statement in reversed(self.statements):
            if isinstance(node, ast.Name) and (made := value_in(statement, node.id)) is not None:
                node = made
        return node
