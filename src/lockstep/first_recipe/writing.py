"""A recipe file as text: empty, or with what was found in a script."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lockstep.first_recipe.evaluation_loops import LOSS
from lockstep.first_recipe.recipe_parts import RecipePart, RecipeParts
from lockstep.first_recipe.schedules import EPOCH_STEPS
from lockstep.first_recipe.scopes import assigned_names, read_names
from lockstep.first_recipe.slices import NotFound, backward_slice, is_built_in
from lockstep.first_recipe.training_script import TrainingScript, is_definition

FUNCTIONS = {
    "model": ("make_model()", "Make the model. It is called after the seed is set, so its weights follow from it."),
    "data": ("make_data()", "Return the training data: a dataset, a stream, or a DataLoader."),
    "loss": (
        "loss(model, batch)",
        "Return the mean over the batch; `lockstep.Loss(total, weight)` where samples weigh.",
    ),
    "optimizer": ("make_optimizer(parameters)", "Make the optimizer."),
}
OPTIONAL = {
    "schedule": ("make_schedule(optimizer)", "Make the learning-rate schedule; it advances once a step."),
    "eval_data": ("make_eval_data()", "Return the data to evaluate on."),
    "evaluate": ("evaluate(model, batch)", "Return named means over the batch."),
}
GIVEN = {"model", "batch", "parameters", "optimizer", "lockstep", EPOCH_STEPS, LOSS}
"""Names that a recipe has of its own."""
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
    "steps": "in place of epochs",
}
MORE = ("evaluate", "eval_data", "clip", "schedule", "collate", "drop_last", "stages", "seed")
"""Fields that a recipe can have and need not."""
DEFAULTS = {"global_batch": "64", "lanes": "4", "epochs": "1"}
TO_WRITE = {
    "schedule": (
        "schedule=",
        "schedule=lambda optimizer: StepLR(optimizer, 1000),  # counts steps; lockstep.once_an_epoch(...): epochs",
    ),
    "evaluate": (
        "evaluate= with eval_data=",
        'evaluate=lambda model, batch: {"loss": loss(model, batch)}, eval_data=your_test_dataset,',
    ),
}
"""What stands in the recipe in place of a part that is left to the user: its name, and an example."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What is known of the data once the recipe has been tried."""

    seeded: bool = False
    """Whether it is made of random numbers, which are then to be the same in every process."""
    batch: int = 64
    """Samples of a step; the lanes divide it."""
    samples: int | None = None
    """Of an epoch."""
    epoch_steps: int | None = None
    """Batches of an epoch."""


NOT_TRIED = DataFacts()


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
    return "\n".join([*head, "", *functions, _recipe({}, [])])


def recipe_of(script: TrainingScript, path: Path, parts: RecipeParts, facts: DataFacts = NOT_TRIED) -> str:
    """Return the recipe of a script; a part that was not found is a function that says so when it is called."""
    _leave_out_unknown(script, path, parts, facts)
    bodies: dict[str, tuple[list[str], str]] = {}
    setup: list[str] = []
    every: list[Sequence[ast.AST]] = []
    for name in (*FUNCTIONS, *OPTIONAL):
        part = parts.functions.get(name) or parts.optional.get(name)
        if part is not None:
            every.append(_all(part))
            setup += [text for one in part.setup if (text := ast.unparse(one)) not in setup]
            body = [
                *_seeding(name, parts, facts),
                *map(ast.unparse, part.statements),
                f"return {ast.unparse(part.value)}",
            ]
            bodies[name] = (body, _docstring(f"From line {part.line} of {path.name}.", part.remark))
        elif name in FUNCTIONS:
            text = f"Not found in {path.name}: {parts.missing.get(name, '')}. Write it here."
            bodies[name] = ([f"raise NotImplementedError({text!r})"], "")
    values = {name: ast.unparse(value) for name, value in parts.values.items()}
    every += [[value] for value in parts.values.values()]
    if facts.seeded:
        every.append([ast.parse("torch")])
    values["lanes"] = str(lanes_of(facts.batch))
    comments = _comments(path, parts)
    imports, copies = _imports(script, path, every)
    taken = set().union(*(assigned_names(ast.parse(text)) for text in [*imports, *copies, *setup]))
    functions = [_function(name, body, where, taken) for name, (body, where) in bodies.items()]
    if any(_counts_steps(part) for part in parts.optional.values()):
        counted = f"batches of {facts.batch} in {facts.samples:,} samples: change it with the batch or the data"
        setup.append(f"{EPOCH_STEPS} = {facts.epoch_steps}  # {counted}")
    head = [
        f'"""The recipe of {path.name}, written by `lockstep init {path.name}`: read it, and change what you like."""',
        "",
        *imports,
        "",
        "import lockstep",
        *(["", *copies] if copies else []),
        *(["", *setup] if setup else []),
    ]
    text = "\n".join(
        [*head, "", *functions, _recipe(values, _to_write(path, parts), taken, list(parts.optional), comments)]
    )
    return text.replace(LOSS, _signature("loss", taken).partition("(")[0])


def _docstring(first: str, more: str) -> str:
    """Return the text of a docstring of one line, or of several."""
    return f"{first}\n\n{textwrap.fill(more, 100)}\n" if more else first


def _seeding(name: str, parts: RecipeParts, facts: DataFacts) -> list[str]:
    """Return the line that seeds random data.

    Data for evaluations that comes of the same statements, such as a random split, needs the same seed; any other data
    would with that seed be the training data again.
    """
    if not facts.seeded or name not in ("data", "eval_data"):
        return []
    same = name == "data" or _common(parts.functions["data"], parts.optional["eval_data"])
    return [f"torch.manual_seed({1 if same else 2})  # the same data in every process"]


def _common(one: RecipePart, other: RecipePart) -> bool:
    """Say whether two parts have a statement in common that calls something."""
    calls = [
        {ast.unparse(line) for line in part.statements if any(isinstance(node, ast.Call) for node in ast.walk(line))}
        for part in (one, other)
    ]
    return bool(calls[0] & calls[1]) or ast.unparse(one.value) == ast.unparse(other.value)


def _counts_steps(part: RecipePart) -> bool:
    return any(EPOCH_STEPS in read_names(one) for one in _all(part))


def _to_write(path: Path, parts: RecipeParts) -> list[str]:
    """Return comments on what is left to the user."""
    left_out = dict(parts.left_out)
    if "evaluate" not in parts.optional:
        left_out.setdefault("evaluate", f"no evaluation was found in {path.name}")
    lines = []
    for name, reason in left_out.items():
        fields, example = TO_WRITE[name]
        lines += [f"# {fields} is left out: {reason}. For example:", f"#     {example}"]
    return lines


def lanes_of(batch: int) -> int:
    """Return how many lanes a batch is cut into: 4, or the nearest number that divides it."""
    return next(lanes for lanes in (4, 2, 3, 5, 7, 1) if batch % lanes == 0)


def _leave_out_unknown(script: TrainingScript, path: Path, parts: RecipeParts, facts: DataFacts) -> None:
    """Leave out what needs something that the script makes elsewhere; data without its collate_fn is not found."""
    for name, value in list(parts.values.items()):
        try:
            _imports(script, path, [[value]])
        except NotFound as reason:
            parts.values.pop(name)
            if name == "collate":
                parts.functions.pop("data", None)
                parts.missing["data"] = f"its collate_fn, {reason}"
    for name, part in [*parts.functions.items(), *parts.optional.items()]:
        try:
            _imports(script, path, [_all(part)])
            if name in OPTIONAL and _counts_steps(part) and facts.epoch_steps is None:
                raise NotFound("the data does not say how many samples it has")
        except NotFound as reason:
            if name in FUNCTIONS:
                parts.functions.pop(name)
                parts.missing[name] = f"{reason}"
            elif name in parts.optional:
                parts.leave_out(name, f"{reason}")


def _all(part: RecipePart) -> list[ast.AST]:
    return [*part.setup, *part.statements, part.value]


def _imports(script: TrainingScript, path: Path, groups: Iterable[Sequence[ast.AST]]) -> tuple[list[str], list[str]]:
    """Return the lines that bring in what groups of nodes need from the top of the script: imports, and copies.

    What a group makes itself it does not need; another group may.
    """
    wanted: set[str] = set()
    for nodes in groups:
        wanted |= set().union(*map(read_names, nodes)) - set().union(*map(assigned_names, nodes))
    wanted = {name for name in wanted - GIVEN if not is_built_in(name)}
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
    signature = (FUNCTIONS | OPTIONAL)[field][0]
    return f"recipe_{signature}" if signature.partition("(")[0] in taken else signature


def _function(name: str, body: Iterable[str], where: str = "", taken: Iterable[str] = ()) -> str:
    signature, words = _signature(name, taken), (FUNCTIONS | OPTIONAL)[name][1]
    inside = "\n".join([f'"""{where or words}"""', *body])
    return f"\ndef {signature}:\n{textwrap.indent(inside, '    ')}\n"


def _comments(path: Path, parts: RecipeParts) -> dict[str, str]:
    """Return what is said of numbers that the script has otherwise, or not at all."""
    guess = "" if "global_batch" in parts.values else f"a guess, not found in {path.name}"
    remarks = [remark for remark in (guess, parts.accumulated) if remark]
    return {"global_batch": "; ".join([COMMENTS["global_batch"], *remarks])} if remarks else {}


def _recipe(
    values: dict[str, str],
    more: Iterable[str],
    taken: Iterable[str] = (),
    optional: Sequence[str] = (),
    comments: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the function that says what is trained."""
    lines = [f"{field}={_signature(field, taken).partition('(')[0]}," for field in (*FUNCTIONS, *optional)]
    numbers = {**{name: one for name, one in DEFAULTS.items() if name != "epochs" or "steps" not in values}, **values}
    said = {**COMMENTS, **comments}
    width = max(len(f"{name}={numbers[name]},") for name in COMMENTS if name in numbers)
    for name, value in numbers.items():
        text = f"{name}={value},"
        lines.append(f"{text:<{width}}  # {said[name]}" if name in said else text)
    others = ", ".join(name for name in MORE if name not in {*values, *optional})
    more = [*more, f"# More fields: {others}; what each means: lockstep docs recipes"]
    inside = "\n".join(f"        {line}" for line in [*lines, *more])
    return (
        '\ndef recipe():\n    """Say what is trained; nothing here says on how many workers."""\n'
        f"    return lockstep.Recipe(\n{inside}\n    )\n"
    )
