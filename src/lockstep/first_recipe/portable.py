"""Statements of a script as a recipe has them: without devices, wrappers and command-line arguments."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence

from lockstep.first_recipe.scopes import Scope, own_nodes

WRAPPERS = {"DataParallel", "DistributedDataParallel", "DDP", "DP", "FullyShardedDataParallel", "FSDP", "compile"}
MOVES = {"cuda", "cpu", "share_memory"}


def callee(node: ast.AST) -> str:
    """Return the last name of what is called: `DDP` of `nn.parallel.DDP(...)`; empty for anything else."""
    if isinstance(node, ast.Call):
        node = node.func
        return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return ""


def unwrapped(node: ast.expr) -> ast.expr:
    """Return what is inside `.to(device)`, `.cuda()`, `DDP(...)` and the like."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and (node.func.attr in MOVES or _to_device(node)):
            node = node.func.value
        elif callee(node) in WRAPPERS and node.args:
            node = node.args[0]
        else:
            break
    return node


def _to_device(call: ast.Call) -> bool:
    """Say whether this is `.to(device)`, not `.to(torch.float64)`."""
    if callee(call) != "to":
        return False
    said = " ".join(ast.unparse(part).lower() for part in [*call.args, *(one.value for one in call.keywords)])
    return any(word in said for word in ("dev", "cuda", "gpu", "rank", "cpu", "mps", "xpu"))


class Arguments:
    """The command line of a script: its names for what it parsed, and each option's default."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        nodes = [node for scope in scopes for node in scope.walk()]
        parsers = {
            scope.name for scope in scopes if scope.name and any(callee(node) == "parse_args" for node in scope.walk())
        }
        self.defaults: dict[str, ast.expr] = {}
        for node in nodes:
            if isinstance(node, ast.Call) and callee(node) == "add_argument":
                self._read(node)
        self.names = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and (callee(node.value) == "parse_args" or callee(node.value) in parsers)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def _read(self, call: ast.Call) -> None:
        flags = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        given = {one.arg: one.value for one in call.keywords}
        long = [flag for flag in flags if flag.startswith("--")] or flags
        dest = given.get("dest")
        name = dest.value if isinstance(dest, ast.Constant) else long[0].lstrip("-").replace("-", "_") if long else ""
        action = given.get("action")
        flag = {"store_true": False, "store_false": True}.get(
            str(action.value) if isinstance(action, ast.Constant) else ""
        )
        self.defaults[str(name)] = given.get("default", ast.Constant(flag))


class Portable(ast.NodeTransformer):
    """Makes a recipe's statement of a script's."""

    def __init__(self, arguments: Arguments, renamed: Mapping[str, str] | None = None) -> None:
        self.arguments = arguments
        self.renamed = renamed or {}

    def statements(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements without those that then do nothing."""
        made = []
        for statement in statements:
            new = ast.fix_missing_locations(self.visit(copy.deepcopy(statement)))
            if not _does_nothing(new):
                made.append(new)
        return made

    def expression(self, node: ast.expr) -> ast.expr:
        """Return one expression."""
        return ast.fix_missing_locations(self.visit(copy.deepcopy(node)))  # type: ignore[no-any-return]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Take off wrappers and moves."""
        inner = unwrapped(node)
        if inner is not node:
            return self.visit(inner)  # type: ignore[no-any-return]
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Put an option's default in its place."""
        if isinstance(node.value, ast.Name) and node.value.id in self.arguments.names:
            default = self.arguments.defaults.get(node.attr)
            if default is not None:
                return copy.deepcopy(default)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Give a value the name that it has in the recipe."""
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Stand in for the command line with its defaults."""
        targets = {one.id for one in node.targets if isinstance(one, ast.Name)}
        if targets & self.arguments.names:
            keywords = [ast.keyword(name, copy.deepcopy(value)) for name, value in self.arguments.defaults.items()]
            made = ast.parse("__import__('types').SimpleNamespace()", mode="eval").body
            assert isinstance(made, ast.Call)
            made.keywords = keywords
            return ast.Assign(targets=node.targets, value=made, lineno=node.lineno)
        return self.generic_visit(node)


def _does_nothing(statement: ast.stmt) -> bool:
    """Say whether it assigns a value to itself, has it prepared, or divides a loss by the accumulated batches."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = ast.unparse(statement.targets[0])
        divided = isinstance(statement.value, ast.BinOp) and isinstance(statement.value.op, ast.Div)
        left = ast.unparse(statement.value.left) if isinstance(statement.value, ast.BinOp) else ""
        prepared = callee(statement.value) == "prepare" and isinstance(statement.value, ast.Call)
        given = ", ".join(map(ast.unparse, statement.value.args)) if isinstance(statement.value, ast.Call) else ""
        itself = target == ast.unparse(statement.value) or (prepared and target.strip("()") == given)
        return itself or (divided and left == target)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Div) and not any(
            isinstance(node, ast.Call) for node in own_nodes(statement.value)
        )
    return False
