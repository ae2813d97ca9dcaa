"""What is found in a script: the parts of a recipe, and the loop that trains."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from lockstep.first_recipe.scopes import Scope


@dataclass
class RecipePart:
    """A function of the recipe."""

    line: int
    """Where the script has it."""
    statements: list[ast.stmt]
    """Its body but for the value."""
    value: ast.expr
    """What it returns."""
    setup: list[ast.stmt] = field(default_factory=list)
    """What is made once, before it is called."""
    remark: str = ""
    """What a reader should know of it: sentences, or empty."""
    what: str = ""
    """What the script has there, if the line alone does not say it."""


@dataclass
class RecipeParts:
    """What was found, by field of a recipe; what was not is in `missing`, with the reason."""

    functions: dict[str, RecipePart] = field(default_factory=dict)
    """`model`, `data`, `loss`, `optimizer`."""
    values: dict[str, ast.expr] = field(default_factory=dict)
    """`global_batch`, `epochs` or `steps`, `clip`, `collate`, `drop_last`."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a function was not found."""
    optional: dict[str, RecipePart] = field(default_factory=dict)
    """`schedule`; `eval_data` and `evaluate`, both or neither."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why there is no `schedule` or no `evaluate`, where the script has one, or seems to have one."""

    accumulated: str = ""
    """Where several batches make a step, if they do: the script's batch is then not the global one."""

    def leave_out(self, name: str, reason: str) -> None:
        """Leave an optional part to the user."""
        name = "schedule" if name == "schedule" else "evaluate"
        part = self.optional.pop(name)
        if name == "evaluate":
            self.optional.pop("eval_data")
        what = f"{part.what}, " if part.what else ""
        self.left_out[name] = f"{what}line {part.line}: {reason}"


@dataclass(frozen=True)
class TrainingLoop:
    """The loop that trains."""

    scope: Scope
    """Where it runs."""
    loop: ast.For
    """Over batches."""
    backward: ast.Call
    """The call in it."""
    model: tuple[str, Scope, ast.AST] | None
    """The model's name where the optimizer is made, and where that is."""
    optimizer: ast.Call | None
    """What makes the optimizer."""
    loader: ast.expr
    """What makes that which it reads."""
