"""A training script, read as text: its model, data, loss and optimizer. Nothing of it is run.

for epoch in range(EPOCHS):                       epochs
    for x, y in DataLoader(dataset, 64):          data, global batch
        loss = criterion(net(x), y)               loss: what `.backward()` is called on, and what that needs
        loss.backward()
        optimizer.step()                          optimizer, and through `net.parameters()` the model
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.first_recipe.flattening import flattened
from lockstep.first_recipe.loops import counted, makes_schedule
from lockstep.first_recipe.portable import Arguments, Portable, callee, unwrapped
from lockstep.first_recipe.scopes import Scope, own_nodes, read_names, scopes_of, statements_before
from lockstep.first_recipe.slices import NotFound, Slicer, backward_slice

RUNS_ON_IMPORT = ("backward", "parse_args", "init_process_group", "fit")
AROUND_A_LOADER = ("enumerate", "tqdm", "islice", "track", "iter", "prepare")


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


@dataclass
class RecipeParts:
    """What was found, by field of a recipe; what was not is in `missing`, with the reason."""

    functions: dict[str, RecipePart] = field(default_factory=dict)
    """`model`, `data`, `loss`, `optimizer`."""
    values: dict[str, ast.expr] = field(default_factory=dict)
    """`global_batch`, `epochs`, `clip`, `collate`, `drop_last`."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a function was not found."""
    schedule: ast.AST | None = None
    """What makes the learning-rate schedule: a recipe is not given it, because its own advances once a step."""


class TrainingScript:
    """One script, and the loop in it that trains."""

    def __init__(self, text: str, name: str) -> None:
        self.tree = flattened(ast.parse(text, name))
        self.scopes = scopes_of(self.tree)
        self.top = self.scopes[0]
        self.arguments = Arguments(self.scopes)
        self.portable = Portable(self.arguments)
        self.copied = any(callee(node) in RUNS_ON_IMPORT for node in self.top.walk())
        """Whether an import would train: then a recipe has copies of what it needs."""
        self.slicer = Slicer(self.scopes)
        if self.copied or self._model_at_top():
            self._part_the_top()

    def _part_the_top(self) -> None:
        """Take what runs at the top as a function's body; what is defined there stays at the top."""
        definitions = [one for one in self.top.body if is_definition(one)]
        running = [one for one in self.top.body if not is_definition(one)]
        main = Scope("", [*running, *self.scopes[1].body])
        self.scopes = [Scope("", definitions, top=True), main, *self.scopes[2:]]
        self.top = self.scopes[0]
        self.slicer = Slicer(self.scopes)

    def _model_at_top(self) -> bool:
        """Say whether an import makes the model: a recipe makes its own, after the seed is set."""
        place = self._backward()
        with contextlib.suppress(NotFound):
            if place is not None:
                made, scope, at = self._optimizer(place[0], place[2])
                return self._root(ast.Name(self._optimized(made), ast.Load()), scope, at)[1].top
        return False

    def parts(self) -> RecipeParts:
        """Return what can be found."""
        parts = RecipeParts()
        place = self._backward()
        if place is None:
            reason = "no call of .backward() in its functions"
            parts.missing = dict.fromkeys(("model", "data", "loss", "optimizer"), reason)
            return parts
        scope, call, loop = place
        model: tuple[str, Scope, ast.AST] | None = None
        with self._part(parts, "optimizer"):
            made, at_scope, at = self._optimizer(scope, loop)
            name = self._optimized(made)
            model = (name, at_scope, at)
            parts.functions["optimizer"] = self._optimizer_part(made, at_scope, at)
        with self._part(parts, "model"):
            if model is None:
                raise NotFound(parts.missing["optimizer"])
            parts.functions["model"] = self._made({model[0]}, ast.Name(model[0], ast.Load()), *model[1:])
        with self._part(parts, "loss"):
            parts.functions["loss"] = self._loss(scope, call, loop, model)
        with self._part(parts, "data"):
            parts.functions["data"] = self._data(scope, loop, parts)
        self._numbers(scope, loop, parts)
        return parts

    @contextlib.contextmanager
    def _part(self, parts: RecipeParts, name: str) -> Iterator[None]:
        try:
            yield
        except NotFound as reason:
            parts.missing[name] = str(reason)

    def _backward(self) -> tuple[Scope, ast.Call, ast.For] | None:
        """Return the innermost loop around the first `.backward()`."""
        for scope in self.scopes:
            for node in scope.walk():
                if isinstance(node, ast.Call) and callee(node) == "backward":
                    around = [
                        one
                        for one in scope.walk()
                        if isinstance(one, ast.For) and any(inner is node for inner in ast.walk(one))
                    ]
                    if around:
                        return scope, node, around[-1]
        return None

    def _root(self, node: ast.expr, scope: Scope, at: ast.AST | None) -> tuple[ast.expr, Scope, ast.AST | None]:
        """Follow a name to the expression that made its value."""
        for _ in range(50):
            node = unwrapped(node)
            inside = self.slicer.returned(node, scope)
            if inside is not None:
                node, scope, at = inside
                continue
            if not isinstance(node, ast.Name):
                break
            try:
                node, scope, at = self.slicer.value(node.id, scope, at)
            except NotFound:
                break
        return node, scope, at

    def _made(self, wanted: set[str], value: ast.expr, scope: Scope, at: ast.AST | None) -> RecipePart:
        """Return a function that makes a value as it is made before a node."""
        needs = self.slicer.needs(wanted, scope, at)
        statements = self.portable.statements(needs.statements)
        value = self.portable.expression(value)
        last = statements[-1] if statements else None
        line = getattr(last, "lineno", 0) or getattr(value, "lineno", 0)
        if isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == ast.unparse(value):
            statements, value = statements[:-1], last.value
        return RecipePart(line, _without_unused(statements, value), value)

    def _optimizer(self, scope: Scope, loop: ast.For) -> tuple[ast.Call, Scope, ast.AST]:
        """Return the call that makes the optimizer whose `step` the loop calls, and where it is."""
        names = [
            part
            for node in own_nodes(loop)
            if isinstance(node, ast.Call) and callee(node) == "step" and isinstance(node.func, ast.Attribute)
            for part in (node.args or [node.func.value])
        ]
        for name in names:
            made, where, at = self._root(name, scope, loop)
            if isinstance(made, ast.Call) and at is not None and _parameters_of(made):
                return made, where, at
        for where in self.scopes:
            for statement in where.body:
                for node in own_nodes(statement):
                    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _parameters_of(node.value):
                        return node.value, where, node
        raise NotFound("no optimizer made of `model.parameters()`")

    def _optimized(self, made: ast.Call) -> str:
        base = _parameters_of(made)
        while isinstance(base, ast.Attribute) and base.attr == "module":
            base = base.value
        if not isinstance(base, ast.Name):
            raise NotFound(f"where {ast.unparse(base) if base else 'the model'} comes from")
        return base.id

    def _optimizer_part(self, made: ast.Call, scope: Scope, at: ast.AST) -> RecipePart:
        named = {one.arg: one.value for one in made.keywords}
        first = made.args[0] if made.args else named.get("params")
        if first is None or callee(first) not in ("parameters", "filter"):
            raise NotFound("its parameter groups: make them of `parameters` yourself")
        others = [one for one in made.keywords if one.arg != "params"]
        given = [ast.Name("parameters", ast.Load()), *made.args[1:]]
        value = ast.Call(func=made.func, args=given, keywords=others)
        value = ast.copy_location(value, made)
        made_part = self._made(read_names(value) - {"parameters"}, value, scope, at)
        made_part.line = made.lineno
        return made_part

    def _loss(
        self, scope: Scope, call: ast.Call, loop: ast.For, model: tuple[str, Scope, ast.AST] | None
    ) -> RecipePart:
        value = _differentiated(call)
        inside = backward_slice(read_names(value), statements_before(loop.body, call))
        target = loop.target
        if callee(loop.iter) == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[1]
        given = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        root = None if model is None else self._root(ast.Name(model[0], ast.Load()), *model[1:])[0]
        outside, renamed = set(), {}
        for name in inside.free - given:
            if root is not None and self._root(ast.Name(name, ast.Load()), scope, loop)[0] is root:
                renamed[name] = "model"
            else:
                outside.add(name)
        portable = Portable(self.arguments, renamed)
        statements = portable.statements(inside.statements)
        needed = set().union(*(read_names(one) for one in statements), read_names(portable.expression(value)))
        outside &= needed
        if isinstance(target, ast.Name):
            statements = Portable(self.arguments, {target.id: "batch"}).statements(statements)
        elif given & inside.free:
            unpack = ast.Assign(targets=[target], value=ast.Name("batch", ast.Load()), lineno=loop.lineno)
            statements.insert(0, ast.fix_missing_locations(unpack))
        setup = self.slicer.needs(outside, scope, loop)
        made = portable.expression(value)
        last = statements[-1] if statements else None
        if isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == ast.unparse(made):
            statements, made = statements[:-1], last.value
        return RecipePart(call.lineno, statements, made, self.portable.statements(setup.statements))

    def _data(self, scope: Scope, loop: ast.For, parts: RecipeParts) -> RecipePart:
        source = loop.iter
        while callee(source) in AROUND_A_LOADER and isinstance(source, ast.Call) and source.args:
            source = source.args[0]
        made, where, at = self._root(source, scope, loop)
        while callee(made) in AROUND_A_LOADER and isinstance(made, ast.Call) and made.args:
            made, where, at = self._root(made.args[0], where, at)
        if callee(made) == "range":
            raise NotFound(f"line {loop.lineno} counts instead of reading a dataset")
        if isinstance(made, ast.Call) and callee(made) == "DataLoader":
            given = self._keywords(made, where, at)
            dataset = given.get("dataset") or (made.args[0] if made.args else None)
            if dataset is None:
                raise NotFound(f"the dataset of the DataLoader in line {made.lineno}")
            sizes = {"global_batch": given.get("batch_size") or (made.args[1] if len(made.args) > 1 else None)}
            sizes |= {"collate": given.get("collate_fn"), "drop_last": given.get("drop_last")}
            for name, value in sizes.items():
                if value is not None:
                    parts.values[name] = self.portable.expression(self._whole(value, where, at))
            return self._made(read_names(dataset), dataset, where, at)
        wanted = read_names(source)
        return self._made(wanted, source, scope, loop)

    def _whole(self, value: ast.expr, scope: Scope, at: ast.AST | None) -> ast.expr:
        """Return an expression with its names replaced by what made them: `cfg.batch` becomes `Config().batch`."""
        value = self._root(value, scope, at)[0]
        names = {name: self._root(ast.Name(name, ast.Load()), scope, at)[0] for name in read_names(value)}
        made = {name: one for name, one in names.items() if not isinstance(one, ast.Name)}
        known = {name for name in made if name in self.arguments.names}

        class Put(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.AST:
                """Put the expression in the place of its name."""
                return made[node.id] if node.id in made and node.id not in known else node

        whole: ast.expr = Put().visit(copy.deepcopy(value))
        return whole

    def _keywords(self, call: ast.Call, scope: Scope, at: ast.AST | None) -> dict[str, ast.expr]:
        """Return the keywords of a call, those of `**settings` too if the script shows that dict."""
        given: dict[str, ast.expr] = {}
        for one in call.keywords:
            if one.arg is not None:
                given[one.arg] = one.value
                continue
            settings = self._root(one.value, scope, at)[0]
            if isinstance(settings, ast.Dict):
                pairs = zip(settings.keys, settings.values, strict=True)
                given |= {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            elif callee(settings) == "dict" and isinstance(settings, ast.Call):
                given |= {pair.arg: pair.value for pair in settings.keywords if pair.arg}
        return given

    def _numbers(self, scope: Scope, loop: ast.For, parts: RecipeParts) -> None:
        """Find the epochs and the clipping."""
        for node in own_nodes(loop):
            if isinstance(node, ast.Call) and callee(node) == "clip_grad_norm_":
                limit = node.args[1] if len(node.args) > 1 else node.keywords[0].value if node.keywords else None
                if limit is not None:
                    parts.values["clip"] = self.portable.expression(self._root(limit, scope, loop)[0])
        with contextlib.suppress(NotFound):
            parts.values["epochs"] = self._epochs(scope, loop)
        parts.schedule = next((node for one in self.scopes for node in one.walk() if makes_schedule(node)), None)

    def _epochs(self, scope: Scope, node: ast.AST) -> ast.expr:
        for one in scope.walk():
            around = isinstance(one, ast.For) and one is not node and any(inner is node for inner in ast.walk(one))
            if isinstance(one, ast.For) and around and isinstance(one.iter, ast.Call):
                counter = one.iter.args[0] if callee(one.iter) in AROUND_A_LOADER else one.iter
                if isinstance(counter, ast.Call) and callee(counter) == "range":
                    bounds = [self.portable.expression(self._whole(part, scope, one)) for part in counter.args]
                    return counted(bounds)
        caller, call = self.slicer.caller(scope)
        return self._epochs(caller, call)


def is_definition(statement: ast.stmt) -> bool:
    """Say whether a statement only defines something: it can stand in a module that others import."""
    return isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


def _parameters_of(made: ast.Call) -> ast.expr | None:
    """Return whose `.parameters()` an optimizer is made of."""
    for part in [*made.args, *(one.value for one in made.keywords)]:
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and callee(node) in ("parameters", "named_parameters"):
                return node.func.value if isinstance(node.func, ast.Attribute) else None
    return None


def _differentiated(call: ast.Call) -> ast.expr:
    """Return the loss of `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`."""
    value = call.args[0] if call.args else call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if isinstance(value, ast.Call) and callee(value) == "scale" and value.args:
        value = value.args[0]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        value = value.left
    return value


def _without_unused(statements: list[ast.stmt], value: ast.expr) -> list[ast.stmt]:
    """Leave out what only the parts that a recipe does not have needed."""
    return backward_slice(read_names(value), statements).statements
