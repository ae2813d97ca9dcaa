"""A recipe file as text: empty, or with what was found in a script."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from lockstep.first_recipe.portable import callee
from lockstep.first_recipe.scopes import assigned_names, read_names
from lockstep.first_recipe.slices import NotFound, backward_slice, is_built_in
from lockstep.first_recipe.training_script import RecipePart, RecipeParts, TrainingScript, is_definition

FUNCTIONS = {
    "model": ("make_model()", "Make the model. It is called after the seed is set, so its weights follow from it."),
    "data": ("make_data()", "Return the training data: a dataset, a stream, or a DataLoader."),
    "loss": (
        "loss(model, batch)",
        "Return the mean over the batch; `lockstep.Loss(total, weight)` where samples weigh.",
    ),
    "optimizer": ("make_optimizer(parameters)", "Make the optimizer."),
}
EXAMPLES = {
    "model": "torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))",
    "data": "torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))",
    "loss": "torch.nn.functional.mse_loss(model(inputs), targets)",
    "optimizer": "torch.optim.AdamW(parameters, lr=1e-3)",
}
EXAMPLE_LINES = {
    "data": ["inputs = torch.randn(1024, 8, generator=torch.Generator().manual_seed(1))"],
    "loss": ["inputs, targets = batch"],
}
COMMENTS = {
    "global_batch": "samples per step, over all workers together",
    "lanes": "slices of it: the same bits on any number of workers up to this; it must divide the batch",
    "epochs": "passes over the data",
}
MORE = [
    "# More fields: evaluate=, eval_data=, clip=, schedule=, collate=, stages=, seed=. A comment on each:",
    "#     python -c 'import lockstep; help(lockstep.Recipe)'",
]
DEFAULTS = {"global_batch": "64", "lanes": "4", "epochs": "1"}


def empty_recipe(file: Path) -> str:
    """Return a recipe that runs, with a comment on everything that you will want to change."""
    head = [
        f'"""A recipe: what is trained. Put your model, data and loss in, then type `lockstep compare {file.name}`."""',
        "",
        "import torch",
        "",
        "import lockstep",
    ]
    functions = [_function(name, [*EXAMPLE_LINES.get(name, []), f"return {EXAMPLES[name]}"]) for name in FUNCTIONS]
    return "\n".join([*head, "", *functions, _recipe({}, MORE)])


def recipe_of(script: TrainingScript, path: Path, parts: RecipeParts, *, seeded: bool = False, batch: int = 64) -> str:
    """Return the recipe of a script; a part that was not found is a function that says so when it is called.

    `seeded`: the data is made of random numbers, which are then the same in every process. The lanes divide `batch`.
    """
    _leave_out_unknown(script, path, parts)
    bodies: dict[str, tuple[list[str], str]] = {}
    setup: list[str] = []
    every: list[ast.AST] = []
    for name in FUNCTIONS:
        part = parts.functions.get(name)
        if part is not None:
            try:
                _imports(script, path, _all(part))
            except NotFound as reason:
                parts.missing[name] = f"{reason}"
                parts.functions.pop(name)
                part = None
        if part is None:
            text = f"Not found in {path.name}: {parts.missing.get(name, '')}. Write it here."
            bodies[name] = ([f"raise NotImplementedError({text!r})"], "")
            continue
        every += _all(part)
        setup += [text for one in part.setup if (text := ast.unparse(one)) not in setup]
        body = [*map(ast.unparse, part.statements), f"return {ast.unparse(part.value)}"]
        if seeded and name == "data":
            body.insert(0, "torch.manual_seed(1)  # the same data in every process")
        bodies[name] = (body, f"From line {part.line} of {path.name}.")
    values: dict[str, str] = {}
    for name, value in parts.values.items():
        every.append(value)
        values[name] = ast.unparse(value)
    if seeded:
        every.append(ast.parse("torch"))
    values["lanes"] = str(lanes_of(batch))
    imports, copies = _imports(script, path, every)
    taken = set().union(*(assigned_names(ast.parse(text)) for text in [*imports, *copies, *setup]))
    functions = [_function(name, body, where, taken) for name, (body, where) in bodies.items()]
    head = [
        f'"""The recipe of {path.name}, written by `lockstep init {path.name}`: read it, and change what you like."""',
        "",
        *imports,
        "",
        "import lockstep",
        *(["", *copies] if copies else []),
        *(["", *setup] if setup else []),
    ]
    left_out = [] if parts.schedule is None else [f"# schedule= is left out: {schedule_of(parts.schedule)}."]
    return "\n".join([*head, "", *functions, _recipe(values, [*left_out, *MORE], taken)])


def schedule_of(made: ast.AST) -> str:
    """Return what a script's learning-rate schedule is, and why its recipe is not given it."""
    return f"{callee(made)}, line {getattr(made, 'lineno', 0)}. A recipe's advances once a step, not once an epoch"


def lanes_of(batch: int) -> int:
    """Return how many lanes a batch is cut into: 4, or the nearest number that divides it."""
    return next(lanes for lanes in (4, 2, 3, 5, 7, 1) if batch % lanes == 0)


def _leave_out_unknown(script: TrainingScript, path: Path, parts: RecipeParts) -> None:
    """Leave out settings that need what the script makes elsewhere; data without its collate function is not found."""
    for name, value in list(parts.values.items()):
        try:
            _imports(script, path, [value])
        except NotFound as reason:
            parts.values.pop(name)
            if name == "collate":
                parts.functions.pop("data", None)
                parts.missing["data"] = f"its collate_fn, {reason}"


def _all(part: RecipePart) -> list[ast.AST]:
    return [*part.setup, *part.statements, part.value]


def _imports(script: TrainingScript, path: Path, nodes: Iterable[ast.AST]) -> tuple[list[str], list[str]]:
    """Return the lines that bring in what the nodes need from the top of the script: imports, and copies."""
    made: set[str] = {"model", "batch", "parameters"}
    wanted: set[str] = set()
    for node in nodes:
        wanted |= read_names(node)
        made |= assigned_names(node)
    wanted = {name for name in wanted - made if not is_built_in(name)}
    copies: list[ast.stmt] = _copies(script, wanted) if script.copied else []
    lines, own = [], []
    for name in sorted(wanted | set().union(*map(read_names, copies))):
        alias = "import torch" if name == "torch" else _import_of(script.tree, name)
        if alias is not None:
            lines.append(alias)
        elif not script.copied and name in set().union(*map(assigned_names, script.top.body)):
            own.append(name)
        elif name in wanted and name not in set().union(*map(assigned_names, copies)):
            raise NotFound(f"where {name} comes from")
    if own:
        lines.append(f"from {path.stem} import {', '.join(own)}")
    future = [line for line in lines if "__future__" in line]
    plain = sorted(set(lines) - set(future), key=lambda line: (line.startswith(f"from {path.stem} "), line))
    return [*future, *plain], [ast.unparse(one) + "\n" for one in copies]


def _copies(script: TrainingScript, wanted: set[str]) -> list[ast.stmt]:
    """Return the functions, classes and values of the script's top that the wanted names need."""
    wanted, kept = set(wanted), set[int]()
    running = [one for one in script.scopes[1].body if isinstance(one, ast.Assign | ast.AnnAssign)]
    for _ in range(len(script.tree.body)):
        before = len(kept)
        for one in script.top.body:
            if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name in wanted and id(one) not in kept:
                kept.add(id(one))
                needs = read_names(one)
                values = backward_slice(needs, running)
                kept |= {id(statement) for statement in values.statements}
                wanted |= needs | values.free
        if len(kept) == before:
            break
    return script.portable.statements([one for one in script.tree.body if id(one) in kept and not _imports_only(one)])


def _imports_only(statement: ast.stmt) -> bool:
    return is_definition(statement) and isinstance(statement, ast.Import | ast.ImportFrom)


def _import_of(tree: ast.Module, name: str) -> str | None:
    """Return the import line that brings a name into the script."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name.split(".")[0]) == name:
                    known = f" as {alias.asname}" if alias.asname else ""
                    if isinstance(statement, ast.Import):
                        return f"import {alias.name}{known}"
                    return f"from {'.' * statement.level}{statement.module or ''} import {alias.name}{known}"
    return None


def _signature(field: str, taken: Iterable[str]) -> str:
    """Return the name and parameters of a part's function; a name that the script has already gets another."""
    signature = FUNCTIONS[field][0]
    return f"recipe_{signature}" if signature.partition("(")[0] in taken else signature


def _function(name: str, body: Iterable[str], where: str = "", taken: Iterable[str] = ()) -> str:
    signature, words = _signature(name, taken), FUNCTIONS[name][1]
    text = "\n".join(body).replace("\n", "\n    ")
    return f'\ndef {signature}:\n    """{where or words}"""\n    {text}\n'


def _recipe(values: dict[str, str], more: Iterable[str], taken: Iterable[str] = ()) -> str:
    """Return the function that says what is trained."""
    lines = [f"{field}={_signature(field, taken).partition('(')[0]}," for field in FUNCTIONS]
    numbers = {**DEFAULTS, **values}
    width = max(len(f"{name}={numbers[name]},") for name in COMMENTS)
    for name, value in numbers.items():
        text = f"{name}={value},"
        lines.append(f"{text:<{width}}  # {COMMENTS[name]}" if name in COMMENTS else text)
    inside = "\n".join(f"        {line}" for line in [*lines, *more])
    return (
        '\ndef recipe():\n    """Say what is trained; nothing here says on how many workers."""\n'
        f"    return lockstep.Recipe(\n{inside}\n    )\n"
    )
