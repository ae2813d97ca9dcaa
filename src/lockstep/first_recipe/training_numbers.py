"""The numbers of a training script: epochs or steps, clipping, accumulated batches, a learning rate set by hand."""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING

from lockstep.first_recipe.loops import counted, inside
from lockstep.first_recipe.portable import callee
from lockstep.first_recipe.recipe_parts import RecipeParts
from lockstep.first_recipe.scopes import Scope, own_nodes
from lockstep.first_recipe.slices import NotFound
from lockstep.first_recipe.step_loops import accumulation, loops_around, rate_by_hand, steps_in

if TYPE_CHECKING:
    from lockstep.first_recipe.training_script import TrainingScript


def find_numbers(script: TrainingScript, scope: Scope, loop: ast.For, parts: RecipeParts) -> None:
    """Find the length of the training and the clipping; say what a recipe has otherwise."""
    loops, counts = loops_around(scope, loop), script.counts(loop, scope)
    for node in own_nodes(loops[0]):
        if isinstance(node, ast.Call) and callee(node) == "clip_grad_norm_":
            limit = node.args[1] if len(node.args) > 1 else node.keywords[0].value if node.keywords else None
            if limit is not None:
                parts.values["clip"] = script.portable.expression(script.root(limit, scope, loop)[0])
    if (line := rate_by_hand(loops[0])) is not None:
        by_step = "LambdaLR(optimizer, lambda step: factor) computes it by step"
        parts.left_out["schedule"] = f"line {line} sets the learning rate by hand; {by_step}"
    if (several := accumulation(scope, loop, counts)) is not None:
        count = script.portable.expression(script.whole(several.batches, scope, loop))
        parts.accumulated = f"line {several.line}: {ast.unparse(count)} batches make a step"
        if "global_batch" in parts.values:
            parts.values["global_batch"] = ast.BinOp(parts.values["global_batch"], ast.Mult(), count)
    with contextlib.suppress(NotFound):
        if not counts:
            parts.values["epochs"] = _epochs(script, scope, loop)
        elif isinstance(one := next((one for one in reversed(loops) if steps_in(one)), None), ast.For):
            parts.values["steps"] = _times(script, one, scope)


def _times(script: TrainingScript, loop: ast.For, scope: Scope) -> ast.expr:
    """Return how often a loop over `range` runs."""
    counter = inside(loop.iter)
    if not isinstance(counter, ast.Call) or callee(counter) != "range":
        raise NotFound(f"how often line {loop.lineno} runs")
    return counted([script.portable.expression(script.whole(part, scope, loop)) for part in counter.args])


def _epochs(script: TrainingScript, scope: Scope, node: ast.AST) -> ast.expr:
    for one in scope.walk():
        around = isinstance(one, ast.For) and one is not node and any(inner is node for inner in ast.walk(one))
        if isinstance(one, ast.For) and around and callee(inside(one.iter)) == "range":
            return _times(script, one, scope)
    caller, call = script.slicer.caller(scope)
    return _epochs(script, caller, call)
