"""What cells define, to the workers and back: by value, privately, with large arrays mapped."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.errors import BadInput
from lockstep.notebook.payload import PAYLOAD, pack, recipe_function, unpack
from lockstep.recipe import Recipe
from lockstep.recipe_file import load

CELL = """
import torch
from torch import nn

SCALE = 3.0

class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return torch.full((2,), SCALE * number)

def loss(model, batch):
    return model(batch).mean()
"""


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a cell leaves in a kernel: definitions of `__main__` that no module holds for a worker."""
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, "<cell 1>", "exec"), made)
    main = ModuleType("__main__")
    vars(main).update(made)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return made


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


def recipe_of(cells: dict[str, Any]) -> Recipe:
    return Recipe(
        model=cells["Net"],
        data=cells["Data"],
        loss=cells["loss"],
        optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1),
        global_batch=4,
    )


def test_a_recipe_of_cells_is_one_of_a_file(
    cells: dict[str, Any], private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pack(recipe_of(cells), "Net", private)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # a worker's
    recipe = load(str(file))
    assert recipe.name == "Net"
    assert recipe.dataset()[2].tolist() == [6.0, 6.0]
    # A DataLoader's own process finds the class by the name of the recipe file's module.
    again = pickle.loads(pickle.dumps(recipe.dataset()))
    assert type(again) is type(recipe.dataset())
    assert type(again).__module__ == "notebook_Net"


def test_only_the_user_can_read_it(cells: dict[str, Any], private: Path) -> None:
    pack(torch.zeros(1 << 19), "big", private)
    modes = {path.name: path.stat().st_mode & 0o777 for path in private.iterdir() if path.suffix != ".py"}
    assert modes == {PAYLOAD: 0o600, "array-0.bin": 0o600}


@pytest.mark.parametrize("how", ["others may write", "a link"])
def test_a_pickle_of_somebody_else_is_not_loaded(how: str, private: Path) -> None:
    pack(len, "len", private)
    if how == "a link":
        (private / PAYLOAD).rename(private / "elsewhere")
        (private / PAYLOAD).symlink_to(private / "elsewhere")
        with pytest.raises(OSError, match="symbolic links"):
            unpack(private)
        return
    (private / PAYLOAD).chmod(0o620)
    with pytest.raises(BadInput, match="not a private file of this user"):
        unpack(private)


def test_large_arrays_are_mapped_and_share_what_they_shared(private: Path) -> None:
    tensor, array = torch.arange(1 << 19), np.arange(1 << 18, dtype=np.float64).reshape(64, -1)
    small = torch.arange(3)
    pack({"whole": tensor, "half": tensor[::2], "array": array, "small": small}, "arrays", private)
    assert (private / PAYLOAD).stat().st_size < 10_000
    assert len(list(private.glob("array-*.bin"))) == 2
    made = unpack(private)
    assert torch.equal(made["whole"], tensor)
    assert torch.equal(made["half"], tensor[::2])
    assert np.array_equal(made["array"], array)
    assert torch.equal(made["small"], small)
    made["whole"][0] = 7  # a worker's own copy of the page
    assert made["half"][0] == 7
    assert tensor[0] == 0
    assert unpack_again(private)["whole"][0] == 0


def unpack_again(folder: Path) -> Any:
    from lockstep.notebook import large_arrays

    large_arrays._mapped.cache_clear()
    return unpack(folder)


def test_a_traceback_shows_the_lines_of_a_cell(private: Path) -> None:
    import linecache

    lines = ["def broken():\n", "    return 1 / 0  # here\n"]
    linecache.cache["<cell 7>"] = (0, None, lines, "<cell 7>")
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("".join(lines), "<cell 7>", "exec"), made)
    pack(made["broken"], "broken", private)
    del linecache.cache["<cell 7>"]
    function = unpack(private)
    assert linecache.getline("<cell 7>", 2) == lines[1]
    del linecache.cache["<cell 7>"]
    with pytest.raises(ZeroDivisionError):
        function()


def test_modules_of_the_kernels_path_are_found(private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module_of_a_kernel.py").write_text("def seven():\n    return 7\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    import own_module_of_a_kernel  # type: ignore[import-not-found]

    pack(own_module_of_a_kernel.seven, "seven", private)
    sys.path.remove(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_module_of_a_kernel")
    assert unpack(private)() == 7


def test_data_goes_to_a_function_that_takes_it() -> None:
    def make(data: str = "none") -> Any:
        return data

    assert recipe_function(make, "make")(data="x") == "x"


def test_the_folder_is_not_needed_to_be_named(private: Path) -> None:
    assert pack(os.getpid, "<lambda>", private).name == "notebook_cell.py"
