"""Private names of torch, and names that differ between its versions, stand in `torch_compat` and nowhere else."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.torch_compat.process_group import FORMER_NAMES

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"
COMPAT = SOURCE / "torch_compat"

PYTHONS_OWN = {
    "_exit",  # of os
    "_replace",  # of named tuples
    "_fields",
    "_asdict",
    "_finalizer_registry",  # of multiprocessing: launch/process_exit.py, socket_folder.py, spawn.py
    "_remove_temp_dir",
    "_config",
    "_forkserver",
    "_forkserver_pid",
    "_callback",
    "_cleanup",
}
RENAMED = {"all_gather_single", "all_gather_into_tensor"}
"""Public names that are not in every version."""
SET_BY_TORCH = {"_backward_cls", "_abc_impl"}
"""What metaclasses put into every class."""
PEERS = {"lightning", "accelerate", "tensorflow"}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree: ast.AST) -> set[str]:
    """Return the names that a file defines: functions, classes, variables and attributes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def of_torch(node: ast.AST) -> bool:
    """Say whether an expression is torch, torch.distributed or something in them, by the names they are imported as."""
    return ast.unparse(node).split(".")[0] in ("torch", "dist")


def foreign(node: ast.AST, own: set[str], everywhere: set[str]) -> str | None:
    """Return the private or version-dependent name of another package that a node uses."""
    if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("lockstep"):
        parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        return next(filter(private, parts), None)
    if isinstance(node, ast.Import):
        return next((alias.name for alias in node.names if any(map(private, alias.name.split(".")))), None)
    if isinstance(node, ast.Attribute):
        if node.attr in RENAMED and of_torch(node.value):
            return node.attr
        mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        known = (everywhere if mine else own) | PYTHONS_OWN
        return node.attr if private(node.attr) and node.attr not in known else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
        assert isinstance(name, str)
        theirs = of_torch(node.args[0]) or (private(name) and name not in everywhere | PYTHONS_OWN)
        return name if name and theirs else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("torch._"):
        return node.value
    return None


def names_outside(sources: dict[str, str]) -> list[str]:
    """Return "file:line name" of all such uses in files given by name and text."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    own = {path: defined(tree) for path, tree in trees.items()}
    everywhere = set().union(*own.values())
    return [
        f"{path}:{getattr(node, 'lineno', 0)} {name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if (name := foreign(node, own[path], everywhere)) is not None
    ]


def test_private_names_of_torch_stand_in_one_package() -> None:
    files = [path for path in sorted(SOURCE.rglob("*.py")) if COMPAT not in path.parents]
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in files}
    outside = names_outside(sources)
    assert not outside, f"private or version-dependent names: move them to torch_compat: {outside}"


@pytest.mark.parametrize(
    "line",
    [
        "from torch._C._distributed_c10d import Store",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "import torch._dynamo",
        "torch._foreach_mul_(a, b)",
        "dist.distributed_c10d._get_default_group()",
        "group._allgather_base(a, b)",
        "tensor._version",
        "self._join_config.enable",
        "getattr(group, '_allgather_base', None)",
        "hasattr(torch, 'accelerator')",
        "dist.all_gather_single(a, b)",
        "name = 'torch._dynamo'",
    ],
)
def test_each_kind_of_use_is_seen(line: str) -> None:
    assert names_outside({"one.py": line})


def test_own_names_are_not_meant() -> None:
    ours = "class A:\n    def __init__(self, other):\n        self._x = other._x\n    def f(self): return self._y"
    assert names_outside({"one.py": ours, "two.py": "class B:\n    def _y(self): ..."}) == []


def classes() -> list[type]:
    """Return every class of lockstep outside torch_compat; those of a peer only if it is installed."""
    every: list[type] = []
    for path in sorted(SOURCE.rglob("*.py")):
        if COMPAT in path.parents or path.name == "__main__.py":
            continue
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name in PEERS:
                continue
            raise
        every += [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == name]
    return every


def test_no_class_overrides_a_private_method_of_torch() -> None:
    overrides = [
        f"{kind.__module__}.{kind.__qualname__}.{name}"
        for kind in classes()
        for name in vars(kind)
        if private(name) and name not in {*FORMER_NAMES, *SET_BY_TORCH}
        for base in kind.__mro__[1:]
        if base.__module__.startswith("torch") and name in vars(base)
    ]
    assert not overrides, f"these answer to private names of torch: move them to torch_compat: {overrides}"


def test_the_package_and_its_startup_do_not_import_torch() -> None:
    code = "import lockstep.torch_compat.startup, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
