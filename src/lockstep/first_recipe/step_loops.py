"""Loops that count steps in place of passes over the data, batches that a script draws by itself, accumulation.

for step in range(MAX_STEPS):                     steps
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step)                a learning rate by hand
    for micro in range(ACCUMULATE):               batches that make one step
        x, y = get_batch("train")                 a batch, in place of one of a dataset
        loss = criterion(net(x), y) / ACCUMULATE
        loss.backward()
    optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from lockstep.first_recipe.portable import callee
from lockstep.first_recipe.scopes import Scope, own_nodes


class Accumulation(NamedTuple):
    """Several batches that make one step."""

    line: int
    batches: ast.expr
    """How many."""


def loops_around(scope: Scope, loop: ast.For) -> list[ast.For | ast.While]:
    """Return the loops of a scope that a loop is in, the outermost first, and itself last."""
    loops = [one for one in scope.walk() if isinstance(one, ast.For | ast.While)]
    return [one for one in loops if any(inner is loop for inner in ast.walk(one))]


def steps_in(loop: ast.For | ast.While) -> list[ast.Call]:
    """Return the calls of `step()` in a loop."""
    return [node for node in own_nodes(loop) if isinstance(node, ast.Call) and callee(node) == "step"]


def accumulation(scope: Scope, loop: ast.For, counts: bool) -> Accumulation | None:
    """Return how many batches make a step: by a loop that counts them, or by `if (i + 1) % n == 0`."""
    if counts and not steps_in(loop) and isinstance(loop.iter, ast.Call) and loop.iter.args:
        return Accumulation(loop.lineno, loop.iter.args[-1])
    for one in own_nodes(loop):
        if isinstance(one, ast.If) and any(callee(node) == "step" for node in own_nodes(one)):
            for part in ast.walk(one.test):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                    return Accumulation(one.lineno, part.right)
    return None


def with_drawn_batch(statements: Sequence[ast.stmt]) -> tuple[list[ast.stmt], ast.Assign | None]:
    """Return statements with `batch` in place of the call that draws one, and the statement that had it."""
    for place, one in enumerate(statements):
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and "batch" in callee(one.value).lower():
            given = ast.Assign(targets=one.targets, value=ast.Name("batch", ast.Load()), lineno=one.lineno)
            return [*statements[:place], ast.fix_missing_locations(given), *statements[place + 1 :]], one
    return list(statements), None


def undivided(value: ast.expr, accumulated: Accumulation | None) -> ast.expr:
    """Return a loss that is not divided by the number of batches that make a step: a recipe does that."""
    divided = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div)
    if divided and accumulated is not None and ast.unparse(value.right) == ast.unparse(accumulated.batches):  # type: ignore[attr-defined]
        left: ast.expr = value.left  # type: ignore[attr-defined]
        return left
    return value


def rate_by_hand(loop: ast.For | ast.While) -> int | None:
    """Return the line that sets a learning rate: `group["lr"] = ...`."""
    for node in own_nodes(loop):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Subscript) and ast.unparse(target.slice) in ("'lr'", '"lr"'):
                return int(node.lineno)  # type: ignore[attr-defined]
    return None
