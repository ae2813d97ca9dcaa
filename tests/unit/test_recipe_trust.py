"""Which recipes a folder may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.train.recipe_trust import check_recipe
from lockstep.train.spec import source_of


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A recipe of the user, beside a run folder that has one too, and links to and from it."""
    (tmp_path / "run").mkdir()
    for path in (tmp_path / "train.py", tmp_path / "run" / "train.py"):
        path.write_text("x = 1\n")
    (tmp_path / "compiled.pyc").write_bytes(b"")
    (tmp_path / "inwards.py").symlink_to(tmp_path / "run" / "train.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    return tmp_path / "train.py"


def test_the_users_own_file_and_built_in_recipes_are_run(own: Path) -> None:
    check_recipe(f"{own}:recipe", source_of(str(own)), own.parent / "run", "...")
    check_recipe("mlp", "", own.parent / "run", "...")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("run/train.py", "lies inside that folder"),
        ("run/../run/train.py", "lies inside that folder"),
        ("inwards.py", "lies inside that folder"),
        ("other.py", "is not a Python file on this machine"),
        ("compiled.pyc", "is not a Python file on this machine"),
        ("loop.py", "is not"),
        ("x" * 300 + ".py", "is not"),
        ("null\0.py", "is not"),
    ],
)
def test_what_came_with_the_folder_is_not(name: str, why: str, own: Path) -> None:
    source = source_of(str(own)) if name.endswith(".py") else ""
    with pytest.raises(BadInput, match=why) as refused:
        check_recipe(str(own.parent / name), source, own.parent / "run", "lockstep run RECIPE --resume run")
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith("type it: lockstep run RECIPE --resume run")


def test_a_changed_file_is_not(own: Path) -> None:
    before = source_of(str(own))
    own.write_text("x = 2\n")
    with pytest.raises(BadInput, match="has another content than when the run began"):
        check_recipe(str(own), before, own.parent / "run", "...")
