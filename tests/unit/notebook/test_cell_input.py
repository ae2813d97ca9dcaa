"""What a cell asks for is checked before anything is started."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import lockstep
from lockstep.errors import BadInput
from lockstep.notebook import cell_input as module
from lockstep.notebook.cell_input import (
    check_settings,
    check_workers,
    makes_recipe,
    new_folder,
    private_folder,
    trainable,
)
from lockstep.recipe import Recipe


def annotated() -> Recipe:
    raise NotImplementedError


def makes_one(**fields: Any) -> Any:
    return lockstep.Recipe(**fields)


def trains_by_itself(**fields: Any) -> Any:
    with lockstep.join() as world:
        return world, Recipe(**fields)


def says_nothing() -> Any:
    return makes_one()


def test_a_function_that_makes_a_recipe_is_known_where_it_shows() -> None:
    functions = (annotated, makes_one, trains_by_itself, says_nothing, len)
    assert [makes_recipe(function) for function in functions] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("value", "found"), [(nn.Linear(1, 1), "a Linear"), (nn.Linear, "the class Linear"), (3, "a int"), (None, "a None")]
)
def test_what_is_no_recipe_is_refused(value: Any, found: str) -> None:
    with pytest.raises(BadInput, match=f"run got {found}.*expected a lockstep.Recipe, a function, a recipe file"):
        trainable(value, "run")


def test_files_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert trainable("train.py:make", "run").value == f"{tmp_path / 'train.py'}:make"
    assert trainable("mlp", "run").value == "mlp"
    with pytest.raises(BadInput, match=r"the recipe file tain.py does not exist: pass the path of a Python file"):
        trainable("tain.py", "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lane": 2}, r"run has no setting 'lane'; did you mean 'lanes'\?"),
        ({"worker": 2}, r"run has no setting 'worker'; did you mean 'workers'\?"),
        ({"steps": "ten"}, "run got steps='ten': expected `int | null`, got `str`"),
        ({"progress": True}, "run has no setting 'progress'"),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_settings(settings, "run", ["workers"])


def test_settings_as_a_spec_holds_them(tmp_path: Path) -> None:
    given = check_settings({"lanes": 4, "threads": 2, "data": tmp_path, "seed": None, "exact": False}, "run", [])
    assert given == {"lanes": 4, "threads": "2", "data": str(tmp_path), "exact": False}


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True])
def test_a_number_of_workers(workers: Any) -> None:
    with pytest.raises(BadInput, match="expected a whole number from 1 up"):
        check_workers(workers, {}, None)


def test_workers_above_the_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cpus", lambda: 4)
    with pytest.warns(UserWarning, match="5 workers on 4 CPUs"):
        check_workers(5, {}, None)
    with pytest.warns(UserWarning, match="2 workers of 3 threads on 4 CPUs"):
        check_workers(2, {"threads": "3"}, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_workers(4, {}, None)
        check_workers(64, {"launcher": "srun"}, None)  # other hosts have other CPUs


def test_two_cells_in_one_second_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda how: "now")
    first = new_folder("Net-ddp")
    first.mkdir(parents=True)
    assert (first.name, new_folder("Net-ddp").name) == ("now-Net-ddp", "now-Net-ddp-2")


def test_what_goes_to_other_hosts_lies_beside_the_run(tmp_path: Path) -> None:
    with private_folder("srun", tmp_path / "runs" / "one") as shared, private_folder("spawn", tmp_path / "x") as here:
        assert shared.parent == tmp_path / "runs"
        assert here.parent != tmp_path
        assert (shared.stat().st_mode & 0o777, here.stat().st_mode & 0o777) == (0o700, 0o700)
    assert not shared.exists()
    assert not here.exists()
