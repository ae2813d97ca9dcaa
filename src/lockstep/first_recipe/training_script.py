"""A training script, read as text: its model, data, loss and optimizer. Nothing of it is run.

for epoch in range(EPOCHS):                       epochs
    for x, y in DataLoader(dataset, 64):          data, global batch
        loss = criterion(net(x), y)               loss: what `.backward()` is called on, and what that needs
        loss.backward()
        optimizer.step()                          optimizer, and through `net.parameters()` the model
    scheduler.step()                              schedule, see schedules.py
    for x, y in test_loader:                      evaluation, see evaluation_loops.py
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Iterator

from lockstep.first_recipe.flattening import flattened
from lockstep.first_recipe.loops import inside
from lockstep.first_recipe.portable import Arguments, Portable, callee, unwrapped
from lockstep.first_recipe.recipe_parts import RecipePart, RecipeParts, TrainingLoop
from lockstep.first_recipe.scopes import Scope, own_nodes, read_names, scopes_of, statements_before
from lockstep.first_recipe.slices import NotFound, Slicer, backward_slice
from lockstep.first_recipe.step_loops import accumulation, undivided, with_drawn_batch
from lockstep.first_recipe.training_numbers import find_numbers

RUNS_ON_IMPORT = ("backward", "parse_args", "init_process_group", "fit")


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
                return self.root(ast.Name(self._optimized(made), ast.Load()), scope, at)[1].top
        return False

    def parts(self) -> RecipeParts:
        """Return what can be found of the parts that every recipe has."""
        parts = RecipeParts()
        training = self.training()
        if training is None:
            reason = "no call of .backward() in its functions"
            parts.missing = dict.fromkeys(("model", "data", "loss", "optimizer"), reason)
            return parts
        scope, loop = training.scope, training.loop
        with self._part(parts, "optimizer"):
            made, at_scope, at = self._optimizer(scope, loop)
            self._optimized(made)
            parts.functions["optimizer"] = self._optimizer_part(made, at_scope, at)
        with self._part(parts, "model"):
            if training.model is None:
                raise NotFound(parts.missing["optimizer"])
            name, at_scope, at = training.model
            parts.functions["model"] = self.made({name}, ast.Name(name, ast.Load()), at_scope, at)
        with self._part(parts, "loss"):
            value = _differentiated(training.backward)
            part = self.of_a_batch(value, training.backward, (scope, loop), training.model)
            part.value = undivided(part.value, accumulation(scope, loop, self.counts(loop, scope)))
            parts.functions["loss"] = part
        with self._part(parts, "data"):
            parts.functions["data"] = self._data(scope, loop, parts)
        if "data" in parts.missing and "loss" in parts.functions:
            self._check_batch(parts)
        find_numbers(self, scope, loop, parts)
        return parts

    def _check_batch(self, parts: RecipeParts) -> None:
        """Leave a loss to the user that draws its own samples: it would go on doing so when there is data."""
        loss = parts.functions["loss"]
        if not any("batch" in read_names(one) for one in (*loss.statements, loss.value)):
            del parts.functions["loss"]
            parts.missing["loss"] = f"line {loss.line} has its own samples; here they come from make_data(), as batch"

    def training(self) -> TrainingLoop | None:
        """Return the loop that trains, and as much of what it uses as can be found."""
        place = self._backward()
        if place is None:
            return None
        scope, call, loop = place
        model = optimizer = None
        with contextlib.suppress(NotFound):
            optimizer, at_scope, at = self._optimizer(scope, loop)
            model = (self._optimized(optimizer), at_scope, at)
        return TrainingLoop(scope, loop, call, model, optimizer, self.loader(loop, scope)[0])

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

    def root(self, node: ast.expr, scope: Scope, at: ast.AST | None) -> tuple[ast.expr, Scope, ast.AST | None]:
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

    def made(self, wanted: set[str], value: ast.expr, scope: Scope, at: ast.AST | None) -> RecipePart:
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
            made, where, at = self.root(name, scope, loop)
            if isinstance(made, ast.Call) and at is not None and _parameters_of(made):
                return made, where, at
        for where in self.scopes:
            for statement in where.body:
                for node in own_nodes(statement):
                    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _parameters_of(node.value):
                        return node.value, where, node
        raise NotFound("no optimizer made of `model.parameters()`")

    def _optimized(self, made: ast.Call) -> str:
        """Return the name of the model: of `net.head.parameters()`, a group of its parameters, it is `net`."""
        base = _parameters_of(made)
        whole = base
        while isinstance(whole, ast.Attribute):
            whole = whole.value
        called = {
            node.func.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        if isinstance(whole, ast.Name) and whole.id in called:
            base = whole
        if not isinstance(base, ast.Name):
            raise NotFound(f"where {ast.unparse(base) if base else 'the model'} comes from")
        return base.id

    def _optimizer_part(self, made: ast.Call, scope: Scope, at: ast.AST) -> RecipePart:
        named = {one.arg: one.value for one in made.keywords}
        first = made.args[0] if made.args else named.get("params")
        if first is None or callee(first) not in ("parameters", "filter"):
            raise NotFound("its parameter groups, which are made of `parameters` here: see `lockstep docs recipes`")
        others = [one for one in made.keywords if one.arg != "params"]
        given = [ast.Name("parameters", ast.Load()), *made.args[1:]]
        value = ast.Call(func=made.func, args=given, keywords=others)
        value = ast.copy_location(value, made)
        made_part = self.made(read_names(value) - {"parameters"}, value, scope, at)
        made_part.line = made.lineno
        return made_part

    def of_a_batch(
        self,
        value: ast.expr,
        at: ast.AST,
        place: tuple[Scope, ast.For],
        model: tuple[str, Scope, ast.AST] | None,
    ) -> RecipePart:
        """Return a function of the model and a batch that computes a value as a loop does before a node."""
        scope, loop = place
        before, drawn = statements_before(loop.body, at), None
        if self.counts(loop, scope):
            before, drawn = with_drawn_batch(before)
        inside = backward_slice(read_names(value), before)
        target = loop.target
        if callee(loop.iter) == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[1]
        given = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)} | ({"batch"} if drawn else set())
        root = None if model is None else self.root(ast.Name(model[0], ast.Load()), *model[1:])[0]
        outside, renamed = set(), {}
        for name in inside.free - given:
            if root is not None and self.root(ast.Name(name, ast.Load()), scope, loop)[0] is root:
                renamed[name] = "model"
            else:
                outside.add(name)
        portable = Portable(self.arguments, renamed)
        statements = portable.statements(inside.statements)
        made = portable.expression(value)
        outside &= set().union(*(read_names(one) for one in statements), read_names(made))
        if drawn is not None:
            pass  # the batch is where it was drawn
        elif isinstance(target, ast.Name):
            batch = Portable(self.arguments, {target.id: "batch"})
            statements, made = batch.statements(statements), batch.expression(made)
        elif given & inside.free:
            unpack = ast.Assign(targets=[target], value=ast.Name("batch", ast.Load()), lineno=loop.lineno)
            statements.insert(0, ast.fix_missing_locations(unpack))
        setup = self.slicer.needs(outside, scope, loop)
        last = statements[-1] if statements else None
        if isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == ast.unparse(made):
            statements, made = statements[:-1], last.value
        line = getattr(at, "lineno", 0)
        return RecipePart(line, statements, made, self.portable.statements(setup.statements))

    def loader(self, loop: ast.For, scope: Scope) -> tuple[ast.expr, Scope, ast.AST | None]:
        """Return what makes that which a loop reads, and where."""
        made, where, at = self.root(inside(loop.iter), scope, loop)
        while (inner := inside(made)) is not made:
            made, where, at = self.root(inner, where, at)
        return made, where, at

    def _data(self, scope: Scope, loop: ast.For, parts: RecipeParts) -> RecipePart:
        made, where, at = self.loader(loop, scope)
        if callee(made) == "range":
            drawn = with_drawn_batch(statements_before(loop.body, None))[1]
            if drawn is not None:
                raise NotFound(
                    f"line {drawn.lineno} draws batches, {ast.unparse(drawn.value)}; here it is a dataset of single "
                    "samples (`lockstep docs recipes`: a script that draws its own batches)"
                )
            raise NotFound(f"line {loop.lineno} counts instead of reading a dataset")
        if isinstance(made, ast.Call) and callee(made) == "DataLoader":
            given = self.keywords(made, where, at)
            sizes = {"global_batch": given.get("batch_size") or (made.args[1] if len(made.args) > 1 else None)}
            sizes |= {"collate": given.get("collate_fn"), "drop_last": given.get("drop_last")}
            for name, value in sizes.items():
                if value is not None:
                    parts.values[name] = self.portable.expression(self.whole(value, where, at))
            return self.dataset(made, where, at)
        source = inside(loop.iter)
        return self.made(read_names(source), source, scope, loop)

    def dataset(self, loader: ast.Call, scope: Scope, at: ast.AST | None) -> RecipePart:
        """Return a function that makes the dataset of a DataLoader."""
        given = self.keywords(loader, scope, at)
        dataset = given.get("dataset") or (loader.args[0] if loader.args else None)
        if dataset is None:
            raise NotFound(f"the dataset of the DataLoader in line {loader.lineno}")
        return self.made(read_names(dataset), dataset, scope, at)

    def whole(self, value: ast.expr, scope: Scope, at: ast.AST | None) -> ast.expr:
        """Return an expression with its names replaced by what made them: `cfg.batch` becomes `Config().batch`."""
        value = self.root(value, scope, at)[0]
        names = {name: self.root(ast.Name(name, ast.Load()), scope, at)[0] for name in read_names(value)}
        made = {name: one for name, one in names.items() if not isinstance(one, ast.Name)}
        known = {name for name in made if name in self.arguments.names}

        class Put(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.AST:
                """Put the expression in the place of its name."""
                return made[node.id] if node.id in made and node.id not in known else node

        whole: ast.expr = Put().visit(copy.deepcopy(value))
        return whole

    def keywords(self, call: ast.Call, scope: Scope, at: ast.AST | None) -> dict[str, ast.expr]:
        """Return the keywords of a call, those of `**settings` too if the script shows that dict."""
        given: dict[str, ast.expr] = {}
        for one in call.keywords:
            if one.arg is not None:
                given[one.arg] = one.value
                continue
            settings = self.root(one.value, scope, at)[0]
            if isinstance(settings, ast.Dict):
                pairs = zip(settings.keys, settings.values, strict=True)
                given |= {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            elif callee(settings) == "dict" and isinstance(settings, ast.Call):
                given |= {pair.arg: pair.value for pair in settings.keywords if pair.arg}
        return given

    def counts(self, loop: ast.For, scope: Scope) -> bool:
        """Say whether a loop counts, in place of reading data."""
        return callee(self.loader(loop, scope)[0]) == "range"


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
