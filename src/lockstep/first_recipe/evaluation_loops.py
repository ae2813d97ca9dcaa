"""The evaluation of a script: a loop over a DataLoader that calls the model and does not train.

with torch.no_grad():
    for x, y in test_loader:                        eval_data: the loader's dataset
        right += (net(x).argmax(1) == y).sum()      evaluate: the share that agrees, beside the loss of the training

It must be plain that it evaluates: it is under no_grad, or beside a call of eval(). What else it computes is for the
user to add: sums that are divided somewhere else do not tell what a mean over a batch would be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep.first_recipe.portable import callee
from lockstep.first_recipe.recipe_parts import RecipePart, RecipeParts, TrainingLoop
from lockstep.first_recipe.scopes import Scope, assigned_names, own_nodes
from lockstep.first_recipe.slices import NotFound, bindings
from lockstep.first_recipe.training_script import TrainingScript

LOSS = "loss_of_the_recipe"
"""Stands for the recipe's own loss function, which may have another name in the file."""
NO_TRAINING = ("no_grad", "inference_mode", "eval")
CONVERSIONS = ("item", "float", "int", "long", "double", "type", "to", "cpu", "detach")


def find_evaluation(script: TrainingScript, training: TrainingLoop, parts: RecipeParts) -> None:
    """Add `eval_data` and `evaluate` to the parts, or why they are left out; nothing if nothing is evaluated."""
    loops = list(_evaluating_loops(script, training))
    if not loops:
        if seen := _looks_like_one(script):
            parts.left_out["evaluate"] = f"line {seen.lineno}: {seen.name}() has no loop that a recipe could be made of"
        return
    scope, loop = loops[0]
    try:
        chosen, others = _choose_call(script, training, scope, loop)
        data = _eval_data(script, parts, scope, loop)
        evaluate = _evaluate(script, training, scope, loop)
    except NotFound as reason:
        parts.left_out["evaluate"] = f"line {loop.lineno}: {reason}"
        return
    lines = [*others, *(other.lineno for _, other in loops[1:])]
    if lines:
        also = " and ".join(map(str, sorted(set(lines))))
        evaluate.remark += f" This is what line {chosen} evaluates on; line {also} has another evaluation."
    parts.optional |= {"eval_data": data, "evaluate": evaluate}


def _evaluating_loops(script: TrainingScript, training: TrainingLoop) -> Iterator[tuple[Scope, ast.For]]:
    """Yield the loops that call the model, and train nothing."""
    if training.model is None:
        return
    name, where, at = training.model
    model = script.root(ast.Name(name, ast.Load()), where, at)[0]
    for scope in script.scopes:
        quiet = _evaluates(script, scope)
        for node in scope.walk():
            if quiet and isinstance(node, ast.For) and not any(callee(one) == "backward" for one in own_nodes(node)):
                called = [one.func for one in own_nodes(node) if isinstance(one, ast.Call)]
                names = [one for one in called if isinstance(one, ast.Name)]
                if any(script.root(one, scope, node)[0] is model for one in names):
                    yield scope, node


def _evaluates(script: TrainingScript, scope: Scope) -> bool:
    """Say whether gradients are off, or the model is switched to evaluation, somewhere in a scope."""
    functions = [one for one in script.tree.body if isinstance(one, ast.FunctionDef) and one.name == scope.name]
    around = [one for function in functions for one in function.decorator_list]
    named = [one.attr for decorator in around for one in ast.walk(decorator) if isinstance(one, ast.Attribute)]
    called = [callee(one) for one in scope.walk()]
    return any(name in NO_TRAINING for name in [*named, *called])


def _looks_like_one(script: TrainingScript) -> ast.FunctionDef | None:
    """Return a function whose name says that it evaluates, and that reads something in a loop."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.FunctionDef) and any(word in node.name.lower() for word in ("eval", "valid", "test")):
            loops = [one for one in ast.walk(node) if isinstance(one, ast.For | ast.comprehension)]
            if loops and not any(callee(one) == "backward" for one in ast.walk(node)):
                return node
    return None


def _choose_call(script: TrainingScript, training: TrainingLoop, scope: Scope, loop: ast.For) -> tuple[int, list[int]]:
    """Follow the call that evaluates on other data than the training's, if there is one; return its line and others."""
    calls = [
        (other, node)
        for other in script.scopes
        for node in other.walk()
        if isinstance(node, ast.Call) and other is not scope and scope.name and bindings(scope, node) is not None
    ]
    loaders = []
    for caller, call in calls:
        script.slicer.follow(scope, caller, call)
        loaders.append(script.loader(loop, scope)[0])
    if not calls:
        return loop.lineno, []
    place = next((place for place, one in enumerate(loaders) if one is not training.loader), 0)
    script.slicer.follow(scope, *calls[place])
    others = [
        call.lineno
        for (_, call), one in zip(calls, loaders, strict=True)
        if one not in (loaders[place], training.loader)
    ]
    return calls[place][1].lineno, others


def _eval_data(script: TrainingScript, parts: RecipeParts, scope: Scope, loop: ast.For) -> RecipePart:
    loader, where, at = script.loader(loop, scope)
    if not (isinstance(loader, ast.Call) and callee(loader) == "DataLoader"):
        raise NotFound("where its data comes from")
    collate = script.keywords(loader, where, at).get("collate_fn")
    trained = parts.values.get("collate")
    if (collate and ast.unparse(script.portable.expression(collate))) != (trained and ast.unparse(trained)):
        raise NotFound("its collate_fn is not that of the training data, and a recipe has one")
    return script.dataset(loader, where, at)


def _evaluate(script: TrainingScript, training: TrainingLoop, scope: Scope, loop: ast.For) -> RecipePart:
    """Return the function of the model and a batch: the loss, and how many samples are right, if that is counted."""
    result = ast.parse(f"{{'loss': {LOSS}(model, batch)}}", mode="eval").body
    assert isinstance(result, ast.Dict)
    for node in own_nodes(loop):
        if not (isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)):
            continue
        right = _agreement(node.value)
        if right is None:
            continue
        part = script.of_a_batch(right, node, (scope, loop), training.model)
        if any(name in ("loss", LOSS, "batch") for one in part.statements for name in assigned_names(one)):
            continue
        share = ast.parse("x.float().mean()", mode="eval").body
        assert isinstance(share, ast.Call)
        assert isinstance(share.func, ast.Attribute)
        assert isinstance(share.func.value, ast.Call)
        assert isinstance(share.func.value.func, ast.Attribute)
        share.func.value.func.value = part.value
        result.keys.append(ast.Constant("accuracy"))
        result.values.append(share)
        remark = f"The accuracy is what line {node.lineno} counts; the loss is that of the training."
        return RecipePart(loop.lineno, part.statements, ast.fix_missing_locations(result), part.setup, remark)
    remark = "The loss is that of the training. What the loop computes beside it is for you to add."
    return RecipePart(loop.lineno, [], ast.fix_missing_locations(result), [], remark)


def _agreement(value: ast.expr) -> ast.expr | None:
    """Return `a == b` of `(a == b).sum().item()`, `a.eq(b).sum()`, `torch.sum(a == b)`; None for anything else."""
    total = _converted(value)
    if callee(total) != "sum" or not isinstance(total, ast.Call):
        return None
    inner = _converted(_operand(total))
    if isinstance(inner, ast.Compare) and len(inner.ops) == 1 and isinstance(inner.ops[0], ast.Eq):
        return inner
    return inner if callee(inner) == "eq" else None


def _converted(value: ast.expr) -> ast.expr:
    """Return what is inside `.item()`, `float(...)` and the like."""
    while isinstance(value, ast.Call) and callee(value) in CONVERSIONS and _operand(value) is not value:
        value = _operand(value)
    return value


def _operand(call: ast.Call) -> ast.expr:
    """Return `x` of `x.sum()`, `torch.sum(x)` and `float(x)`; of a sum over some dimensions, the call itself."""
    method = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) != "torch"
    if isinstance(call.func, ast.Attribute) and method:
        return call if callee(call) == "sum" and (call.args or call.keywords) else call.func.value
    return call.args[0] if len(call.args) == 1 and not call.keywords else call
