"""A script in a plainer form: methods of a trainer as functions, and a function that trains put where it is called.

It is put there if it makes one step, or if it stands inside another function.

class Trainer:                                        def Trainer(model, loader):
    def __init__(self, model, loader):                    self_model = model
        self.model, self.loader = ...          ->         self_loader = loader
    def train(self):                                  def train():
        for x, y in self.loader:                          for x, y in self_loader:
            self.step(x, y)                                   ...the statements of step...
"""

from __future__ import annotations

import ast
import copy

from lockstep.first_recipe.portable import callee

MOST_INLINED = 5


def flattened(tree: ast.Module) -> ast.Module:
    """Return the script in its plainer form."""
    body: list[ast.stmt] = []
    methods: set[str] = set()
    owners: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and _trains(statement) and not _is_model(statement):
            functions = [_as_function(one, statement) for one in statement.body if isinstance(one, ast.FunctionDef)]
            owners.add(statement.name)
            methods |= {one.name for one in functions}
            body += functions
        else:
            body.append(statement)
    plain = ast.Module(body=body, type_ignores=[])
    if methods:
        plain = _PlainCalls(methods, owners, plain).visit(plain)
    for _ in range(MOST_INLINED):
        if not _inline_step(plain):
            break
    return ast.fix_missing_locations(plain)


def _trains(node: ast.AST) -> bool:
    return any(callee(one) == "backward" for one in ast.walk(node))


def _is_model(statement: ast.ClassDef) -> bool:
    return any("Module" in ast.unparse(base) or "Function" in ast.unparse(base) for base in statement.bases)


def _as_function(method: ast.FunctionDef, owner: ast.ClassDef) -> ast.FunctionDef:
    """Return a method as a function whose `self.x` are plain names."""
    names = {one.name for one in owner.body if isinstance(one, ast.FunctionDef)}
    made: ast.FunctionDef = _Attributes(names).visit(copy.deepcopy(method))
    made.args.args = made.args.args[1:]
    made.name = owner.name if method.name == "__init__" else method.name
    return made


class _Attributes(ast.NodeTransformer):
    """`self.model` becomes `self_model`, and `self.step(...)` becomes `step(...)`."""

    def __init__(self, methods: set[str]) -> None:
        self.methods = methods

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Give an attribute of the object a name of its own."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            name = node.attr if node.attr in self.methods else f"self_{node.attr}"
            return ast.copy_location(ast.Name(name, node.ctx), node)
        return node


class _PlainCalls(ast.NodeTransformer):
    """`trainer.train()` becomes `train()`, if `trainer` is an object of one of the classes."""

    def __init__(self, methods: set[str], owners: set[str], tree: ast.Module) -> None:
        self.methods = methods
        self.owners = owners
        self.objects = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and callee(node.value) in owners
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Call the function in place of the method."""
        self.generic_visit(node)
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in self.methods and self._is_object(func.value):
            node.func = ast.copy_location(ast.Name(func.attr, ast.Load()), func)
            if isinstance(func.value, ast.Call):  # Trainer(...).train(): what makes the object stays in sight
                node.keywords.append(ast.keyword("made_by", func.value))
        return node

    def _is_object(self, node: ast.expr) -> bool:
        return callee(node) in self.owners or (isinstance(node, ast.Name) and node.id in self.objects)


def _inline_step(tree: ast.Module) -> bool:
    """Put one function that trains in the place of its call, and say whether there was one."""
    outers: list[ast.Module | ast.FunctionDef] = [tree]
    for outer in [*outers, *(one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef))]:
        for function in outer.body:
            if not isinstance(function, ast.FunctionDef) or not _trains(function):
                continue
            if outer is tree and _loops(function):
                continue  # a scope of its own
            inliner, whole = _Inliner(function), outer.body
            outer.body = [one for one in whole if one is not function]
            inliner.visit(outer)
            if inliner.done:
                return True
            outer.body = whole
    return False


def _loops(function: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.For) and _trains(one) for one in ast.walk(function))


class _Inliner(ast.NodeTransformer):
    """Replaces the statement of a call by what the function does."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.function = function
        self.done = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Look at each list of statements."""
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, field, [new for one in body for new in self._inlined(one)])
        return node

    def _inlined(self, statement: ast.stmt) -> list[ast.stmt]:
        if not isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign):
            return [statement]
        calls = [one for one in ast.walk(statement) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        call = next((one for one in calls if ast.unparse(one.func) == self.function.name), None)
        if call is None:
            return [statement]
        self.done = True
        names = [argument.arg for argument in self.function.args.args]
        given = dict(zip(names, call.args, strict=False)) | {one.arg: one.value for one in call.keywords if one.arg}
        bound = [
            ast.copy_location(ast.Assign(targets=[ast.Name(name, ast.Store())], value=value), statement)
            for name, value in given.items()
        ]
        body = [copy.deepcopy(one) for one in self.function.body if not isinstance(one, ast.Return)]
        return [*bound, *body]
