"""Imports follow the flow of a run and never go back; the command line stays free of torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"

# Each part may import from those on its right, and from itself. The order is DESIGN's arrow, read as
# "who may know whom": the command line knows everything, errors know nothing.
MAY_IMPORT = {
    "cli": "cli_bench cli_compare cli_export cli_options cli_report cli_runs doctor launch report train strategies "
    "registry world process_wide errors version",
    "cli_bench": "cli_options bench report errors",
    "cli_compare": "cli_options comparison report train strategies world errors registry",
    "cli_runs": "cli_options runs report errors",
    "runs": "report train errors",
    "cli_export": "cli_options train",
    "cli_report": "cli_options report train",
    "cli_options": "train recipe registry settings world",
    "__main__": "cli",
    "__init__": "comm recipe train world version events",
    "mesh": "comm world errors",
    "state": "comm digest torch_compat errors",
    "comparison": "launch report train world registry errors",
    "doctor": "train world registry errors",
    "bench": "report launch recipes mesh state recipe train strategies data nn exchange comm lanes world torch_compat "
    "registry errors version",
    "peers": "launch mesh state train strategies data recipe digest world torch_compat registry errors",
    "report": "train stages settings errors version registry",
    "launch": "train strategies comm world process_wide torch_compat errors registry",
    "train": "strategies stages process_wide mesh state data nn comm recipe digest world seeding torch_compat errors "
    "version lanes registry settings events",
    "strategies": "exchange mesh stages state data nn comm lanes digest recipe world torch_compat errors registry "
    "settings",
    "stages": "comm lanes torch_compat errors",
    "recipes": "recipe data",
    "recipe": "lanes errors",
    "events": "",
    "exchange": "comm lanes torch_compat errors",
    "world": "comm process_wide torch_compat errors",
    "comm": "lanes process_wide torch_compat errors",
    "nn": "comm lanes torch_compat errors",
    "data": "lanes seeding torch_compat errors",
    "lanes": "seeding torch_compat errors",
    "digest": "",
    "seeding": "",
    "errors": "",
    "version": "",
    "registry": "errors",
    "settings": "registry errors",
    "torch_compat": "",
    "process_wide": "errors",
}


def part_of(module: str) -> str:
    """Return the part of the design that a module belongs to."""
    return module.removeprefix("lockstep.").split(".")[0]


def imports(path: Path) -> list[str]:
    """Return every lockstep module that a file imports, at any depth, unless only for type checking."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lockstep"):
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [
                name if (SOURCE / Path(*name.split(".")[1:])).with_suffix(".py").exists() else base for name in names
            ]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("lockstep")]
    return [module for module in found if module != "lockstep"]


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_goes_back(path: Path) -> None:
    relative = path.relative_to(SOURCE).with_suffix("")
    own = part_of("lockstep." + ".".join(relative.parts))
    allowed = {own, *MAY_IMPORT[own].split()}
    bad = [module for module in imports(path) if part_of(module) not in allowed]
    assert not bad, f"{relative} imports {bad}; {own} may import {sorted(allowed)}"


@pytest.mark.parametrize(
    "module",
    ["lockstep", "lockstep.cli", "lockstep.launch.start", "lockstep.train.export", "lockstep.train.weights_difference"],
)
def test_starts_without_torch(module: str) -> None:
    check = f"import {module}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_worker_loads_beside_torch_only_what_it_writes_records_with() -> None:
    """What commands and reports need (typer, rich, jinja2) would be in the memory of every rank."""
    code = """
import sys, torch, torch._dynamo
before = set(sys.modules)
import lockstep.launch.worker, lockstep.recipes.cifar100, lockstep.train.loop, lockstep.train.preflight
from lockstep.registry import STRATEGIES
from lockstep.strategies import find
for name in STRATEGIES.names():
    find(name)
added = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
sys.exit(str(sorted(added)) if added != {"lockstep", "msgspec"} else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
