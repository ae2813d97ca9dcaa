"""A recipe's own classes in the processes that a rank starts: a stock DataLoader's workers, by every start method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.commands import LOCKSTEP, Marked

RECIPE = Path(__file__).parents[1] / "recipes" / "loaded.py"
WAYS = {
    "single": ["--workers", "1"],
    "dp": ["--workers", "2", "--strategy", "dp"],
    "spawn": ["--workers", "2"],
    "torchrun": ["--workers", "2", "--launcher", "torchrun"],
}


def digest(recipe: Path, way: str, method: str, folder: Path) -> str:
    marked = Marked({"LOADER_METHOD": method})
    done = marked.run([LOCKSTEP, "run", str(recipe), *WAYS[way], "--threads", "1", "--json", "--out", "run"], folder)
    assert done.code == 0, done.err
    shutil.rmtree(folder / "run")
    result: str = json.loads(done.out)["result"]["digest"]
    return result


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest(RECIPE, "single", "fork", tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize(
    ("way", "method"),
    [
        pytest.param("spawn", "", marks=pytest.mark.soak),
        ("spawn", "spawn"),
        pytest.param("spawn", "forkserver", marks=pytest.mark.soak),
        pytest.param("dp", "", marks=pytest.mark.soak),
        pytest.param("single", "spawn", marks=pytest.mark.soak),
        pytest.param("torchrun", "spawn", marks=pytest.mark.soak),
    ],
)
def test_loader_workers_find_the_recipe(way: str, method: str, reference: str, tmp_path: Path) -> None:
    assert digest(RECIPE, way, method, tmp_path) == reference


def test_a_recipe_that_is_part_of_a_package(reference: str, tmp_path: Path) -> None:
    package = tmp_path / "mine" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    shutil.copy(RECIPE, package.parent / "parts.py")
    (package / "train.py").write_text("from ..parts import recipe as made\n\n\ndef recipe():\n    return made()\n")
    assert digest(package / "train.py", "spawn", "spawn", tmp_path) == reference
