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
    "cli": "cli_bench cli_compare cli_docs cli_doctor cli_export cli_fit cli_help cli_init cli_jobs cli_launch "
    "cli_notebook cli_options cli_report cli_run cli_runs cli_sbatch process_wide output version errors",
    "cli_docs": "cli_options doc_pages report",
    "cli_doctor": "cli_options doctor selftest",
    "cli_launch": "cli_options launch tensorflow errors",
    "cli_run": "cli_options launch report train strategies registry world errors",
    "cli_bench": "cli_options bench report errors",
    "cli_compare": "cli_options comparison report train strategies world errors registry",
    "cli_fit": "cli_options fit report train world byte_sizes",
    "cli_init": "cli_options first_recipe errors",
    "first_recipe": "recipe recipe_file data errors",
    "fit": "launch report train strategies exchange stages mesh data recipe lanes settings world torch_compat registry "
    "byte_sizes errors",
    "cli_runs": "cli_options runs report errors",
    "cli_jobs": "cli_options cluster runs report errors",
    "cli_sbatch": "cli_options cluster recipe_file train errors",
    "cli_notebook": "cli_options cluster kernelspec errors",
    "kernelspec": "errors version",
    "runs": "report train errors",
    "cluster": "runs report train launch recipe registry settings world byte_sizes errors",
    "cli_export": "cli_options train",
    "cli_report": "cli_options report train",
    "cli_help": "doc_pages errors",
    "doc_pages": "errors",
    "cli_options": "cli_help train recipe_file registry settings world errors",
    "__main__": "cli",
    "notebook": "cli_options comparison launch report train strategies recipe recipe_file settings output world "
    "registry errors",
    "__init__": "notebook comm recipe epoch_schedule train world version events",
    "epoch_schedule": "errors",
    "mesh": "comm lanes world errors",
    "state": "comm digest torch_compat errors",
    "comparison": "fit launch report train world registry errors",
    "doctor": "train world registry errors",
    "selftest": "doctor launch report train registry world errors",
    "bench": "fit report launch recipes mesh state recipe recipe_file train strategies stages data nn exchange comm "
    "lanes world torch_compat registry errors version",
    "peers": "tensorflow launch output mesh state train strategies data recipe lanes digest world torch_compat "
    "registry errors",
    "tensorflow": "launch world process_wide errors",
    "report": "train stages settings errors version registry",
    "launch": "train strategies comm world process_wide output torch_compat errors registry",
    "train": "strategies stages process_wide mesh state data nn comm recipe recipe_file digest world seeding "
    "torch_compat errors version lanes registry settings events byte_sizes",
    "strategies": "exchange mesh shards stages state data nn comm lanes digest recipe world torch_compat errors "
    "registry settings byte_sizes",
    "shards": "stages comm lanes torch_compat errors",
    "stages": "comm lanes torch_compat byte_sizes errors",
    "recipes": "recipe data",
    "recipe_file": "recipe recipes errors",
    "recipe": "lanes errors",
    "events": "",
    "exchange": "comm lanes torch_compat errors",
    "world": "comm process_wide torch_compat errors",
    "comm": "lanes process_wide torch_compat errors",
    "nn": "comm lanes torch_compat errors",
    "data": "lanes seeding torch_compat errors",
    "lanes": "seeding torch_compat errors",
    "digest": "",
    "byte_sizes": "errors",
    "seeding": "",
    "errors": "",
    "version": "",
    "registry": "errors",
    "settings": "registry errors",
    "torch_compat": "",
    "process_wide": "errors",
    "output": "",
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
    [
        "lockstep",
        "lockstep.cli",
        "lockstep.tensorflow.script_rank",
        "lockstep.tensorflow.joining",
        "lockstep.launch.start",
        "lockstep.train.export",
        "lockstep.train.weights_difference",
    ],
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
from lockstep.registry.base import import_object
for strategy in STRATEGIES.all():
    import_object(strategy.implementation)
added = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
sys.exit(str(sorted(added)) if added - {"torch"} != {"lockstep", "msgspec"} else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
