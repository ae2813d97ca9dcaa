"""What a training loop says of what it reads, of its length and of its learning rate."""

from __future__ import annotations

import ast

from lockstep.first_recipe.portable import callee
from lockstep.first_recipe.slices import NotFound

SCHEDULES = ("ReduceLROnPlateau", "CosineAnnealingWarmRestarts")
"""Those of torch whose names do not end in LR."""
AROUND_A_LOADER = ("enumerate", "tqdm", "islice", "track", "iter", "prepare")


def inside(source: ast.expr) -> ast.expr:
    """Return what is inside `enumerate(...)`, `tqdm(...)` and the like."""
    while callee(source) in AROUND_A_LOADER and isinstance(source, ast.Call) and source.args:
        source = source.args[0]
    return source


def makes_schedule(node: ast.AST) -> bool:
    """Say whether a node makes a learning-rate schedule: `StepLR(optimizer, 5)`."""
    name = callee(node)
    given = isinstance(node, ast.Call) and bool(node.args or node.keywords)
    return given and (name.endswith("LR") or name in SCHEDULES or (name.startswith("get_") and "schedule" in name))


def counted(bounds: list[ast.expr]) -> ast.expr:
    """Return how often `for _ in range(*bounds)` runs: a number, or an expression if the bounds are no literals."""
    try:
        times = len(range(*map(_number, bounds)))
    except ValueError:
        if len(bounds) == 1:
            return bounds[0]
        numbers = ast.Call(ast.Name("range", ast.Load()), bounds, [])
        return ast.Call(ast.Name("len", ast.Load()), [numbers], [])
    except TypeError:
        times = 0
    if not times:
        raise NotFound("how often the loop over the data runs")
    return ast.Constant(times)


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _number(node.left) + _number(node.right)
    return int(ast.literal_eval(node))
