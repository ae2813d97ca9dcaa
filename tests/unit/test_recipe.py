"""Recipes: loading by name and file, and a clear refusal of everything that is not one."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from torch import nn
from torch.optim import SGD
from torch.utils.data import Dataset, IterableDataset

from lockstep import Recipe
from lockstep.errors import BadInput
from lockstep.recipe import plan
from lockstep.recipe_file import load
from lockstep.train.spec import RunSpec
from tests.commands import TINY


def plain(**changes: object) -> Recipe:
    fields = {
        "model": lambda: nn.Linear(1, 1),
        "data": [1, 2, 3, 4],
        "loss": lambda model, batch: model(batch).sum(),
        "optimizer": lambda ps: SGD(ps, lr=0.1),
        "global_batch": 2,
    }
    return Recipe(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cifar100", "mlp", "bytes"])
def test_built_in(name: str) -> None:
    recipe = load(name)
    assert recipe.name == name
    assert len(recipe.dataset()) > recipe.global_batch
    assert len(recipe.eval_dataset()) != len(recipe.dataset())


def test_sizes_of_the_built_ins() -> None:
    def count(name: str) -> int:
        return sum(parameter.numel() for parameter in load(name).model().parameters())

    assert 6.3e6 < count("mlp") < 6.7e6
    assert any(isinstance(module, nn.BatchNorm2d) for module in load("cifar100").model().modules())
    assert any(isinstance(module, nn.Dropout) for module in load("bytes").model().modules())


def test_texts_differ_in_length_and_images_have_all_labels() -> None:
    texts = load("bytes").dataset()
    assert len({len(texts[index]) for index in range(200)}) > 30
    images, labels = load("cifar100").dataset().tensors
    assert images.shape[1:] == (3, 32, 32)
    assert set(labels.tolist()) == set(range(100))


def test_made_up_data_is_the_same_every_time() -> None:
    for name in ("cifar100", "mlp"):
        first, again = load(name).dataset(), load(name).dataset()
        assert all(bool((a == b).all()) for a, b in zip(first.tensors, again.tensors, strict=True))


def test_file_and_function() -> None:
    assert load(TINY).name == "tiny"
    assert len(load(f"{TINY}:uneven").dataset()) == 104


def test_an_edited_file_is_never_taken_for_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps compiled code, and knows a file by its size and its time in seconds."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "quickly_edited.py"
    text = f"import sys; sys.path.insert(0, {str(Path(TINY).parent)!r})\nimport tiny\n"
    text += "def recipe():\n    return tiny.recipe().override(lanes=2)\n"
    for lanes in (2, 3):
        path.write_text(text.replace("lanes=2", f"lanes={lanes}"))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert load(str(path)).lanes == lanes


def test_a_recipe_that_another_one_imported_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "first_recipe.py").write_text(Path(TINY).read_text())
    (tmp_path / "second_recipe.py").write_text("from first_recipe import recipe\n")
    assert load(str(tmp_path / "second_recipe.py")).name == "second_recipe"
    assert load(str(tmp_path / "first_recipe.py")).name == "first_recipe"
    other = tmp_path / "json.py"
    other.write_text(Path(TINY).read_text())
    with pytest.raises(BadInput, match="has the same name as the module 'json' and would hide it: rename the file"):
        load(str(other))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("cifar10", r"no recipe called 'cifar10'; did you mean 'cifar100'"),
        ("zzz", r"there are: cifar100, mlp, bytes"),
        ("missing.py", r"missing.py does not exist"),
        (f"{TINY}:breaks", r"breaks\(\) of .* raised an error:[\s\S]*no recipe today"),
        (f"{TINY}:wrong", r"returned a dict, expected a lockstep.Recipe"),
        (f"{TINY}:recipy", r"has no function recipy\(\); did you mean 'recipe'"),
    ],
)
def test_refused(reference: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        load(reference)


def test_a_file_that_raises_shows_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("x = 1\nraise OSError('on line two')\ndef recipe(): ...\n")
    with pytest.raises(BadInput, match=r"line 2[\s\S]*on line two") as caught:
        load(str(path))
    assert "importlib" not in str(caught.value)


def test_a_folder_is_not_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a file"):
        load(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": 3}, r"Recipe\(loss=...\) must be a function, found a int"),
        ({"model": nn.Linear(1, 1)}, r"Recipe\(model=...\) is a Linear, expected a function or class that makes it"),
        ({"batch_size": 16}, "Recipe has no field 'batch_size'; did you mean 'global_batch'"),
        ({"sed": 1}, "Recipe has no field 'sed'; did you mean 'seed'"),
        ({"optimizer": SGD([nn.Parameter(nn.Linear(1, 1).weight)], lr=0.1)}, r"Recipe\(optimizer=...\) must be a func"),
        ({"global_batch": 0}, r"global_batch=0"),
        ({"global_batch": 2.5}, r"global_batch=2.5"),
        ({"epochs": 0}, r"epochs=0"),
        ({"steps": 0}, r"steps=0"),
        ({"seed": "x"}, r"seed='x'"),
    ],
)
def test_wrong_fields(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        plain(**changes)


def test_missing_fields_are_named() -> None:
    with pytest.raises(BadInput, match="lacks data, loss, optimizer: every recipe needs model, data, loss, opt"):
        Recipe(model=lambda: nn.Linear(1, 1), global_batch=4)  # type: ignore[call-arg]


def test_a_recipe_can_be_copied_and_pickled() -> None:
    one = plain(model=nn.Linear, loss=max, optimizer=min)
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == replace(one)


def test_a_file_without_the_function_lists_its_own(tmp_path: Path) -> None:
    path = tmp_path / "my_training.py"
    path.write_text("from lockstep import Recipe\ndef make(): ...\ndef loss(model, batch): ...\n")
    init = f"`lockstep init {path}` writes one from a script"
    with pytest.raises(BadInput, match=r"has no function recipe\(\)\. A recipe file defines") as refused:
        load(str(path))
    assert str(refused.value).endswith(f"{init}. If make or loss returns a lockstep.Recipe, name it: {path}:NAME")
    path.write_text("print")
    with pytest.raises(BadInput, match=r"has no function recipe\(\)\. A recipe file defines") as refused:
        load(str(path))
    assert str(refused.value).endswith(init)


def test_a_training_script_is_refused_before_it_trains(tmp_path: Path) -> None:
    path = tmp_path / "trains_at_once.py"
    path.write_text("raise SystemExit('it trains')\n\ndef main():\n    recipe = 1\n")
    with pytest.raises(BadInput, match="has no function recipe"):
        load(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "from tests.recipes.tiny import recipe\n",
        "from tests.recipes.tiny import *\n",
        "import tests.recipes.tiny as tiny\nrecipe = tiny.recipe\n",
        "try:\n    from nowhere import recipe\nexcept ImportError:\n    from tests.recipes.tiny import recipe\n",
        "from tests.recipes import tiny\nglobals().update(recipe=tiny.recipe)\n",
    ],
)
def test_a_function_that_comes_from_elsewhere_is_found(text: str, tmp_path: Path) -> None:
    path = tmp_path / f"elsewhere_{abs(hash(text))}.py"
    path.write_text(text)
    assert load(str(path)).global_batch


@pytest.mark.parametrize(("data", "more"), [(None, ""), (7, ""), (iter([1]), r".*It can be read only once")])
def test_data_that_is_none(data: object, more: str) -> None:
    with pytest.raises(BadInput, match=f"dataset with __len__ and __getitem__, a stream with __iter__{more}"):
        plain(data=data).dataset()


class Letters(IterableDataset[str]):
    """A stream."""

    def __iter__(self) -> Iterator[str]:
        return iter("abc")


def test_streams_are_data() -> None:
    for data in (Letters, Letters(), lambda: Letters()):
        assert list(plain(data=data).dataset()) == ["a", "b", "c"]
    words = r"a stream without __len__, .*: give --steps N, or steps=N in the recipe, or add __len__"
    with pytest.raises(BadInput, match=words):
        plan(plain(), workers=1, samples=None)
    assert plan(plain(), workers=1, samples=None, steps=9).steps == 9


class Squares(Dataset[int]):
    """A dataset whose class can be handed over: it needs no argument."""

    def __init__(self, samples: int = 5) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index * index


class Called(Squares):
    """A dataset that can be called for some other reason."""

    def __call__(self) -> None:
        raise AssertionError("a dataset is there already")


@pytest.mark.parametrize("data", [Squares, lambda: Squares(), partial(Squares, 5), Squares(), Called()])
def test_whatever_makes_the_data_is_called(data: object) -> None:
    dataset = plain(data=data, eval_data=data).dataset()
    assert [dataset[index] for index in range(len(dataset))] == [0, 1, 4, 9, 16]
    assert len(plain(data=[1], eval_data=data).eval_dataset()) == 5


def test_a_class_that_cannot_be_called_without_arguments_is_told() -> None:
    class Needs(Squares):
        def __init__(self, folder: str) -> None:
            super().__init__(len(folder))

    with pytest.raises(BadInput, match=r"raised an error while it made the data:[\s\S]*missing 1 required .* 'folder'"):
        plain(data=Needs).dataset()


def test_data_that_raises() -> None:
    def broken() -> list[int]:
        raise FileNotFoundError("images.tar")

    with pytest.raises(BadInput, match=r"made the data:[\s\S]*images.tar"):
        plain(data=broken).dataset()


@pytest.mark.parametrize(
    ("changes", "workers", "samples", "steps", "words"),
    [
        ({}, 1, 0, None, "empty"),
        ({"global_batch": 8}, 1, 4, None, r"global batch of 8 is larger than the data \(4 samples\)"),
        ({"lanes": 2}, 3, 4, None, "cannot be cut over 3 workers"),
        ({}, 1, 4, 0, "--steps 0"),
    ],
)
def test_plans_refused(changes: dict[str, int], workers: int, samples: int, steps: int | None, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        plan(plain(**changes), workers=workers, samples=samples, steps=steps)


def test_plan() -> None:
    found = plan(plain(epochs=3), workers=2, samples=5)
    assert (found.lanes, found.epoch_steps, found.steps) == (2, 3, 9)
    assert plan(plain(), workers=1, samples=4, steps=7).steps == 7
    assert plan(plain(drop_last=True, epochs=3), workers=2, samples=5).steps == 6
    assert plan(plain(steps=7), workers=1, samples=4).steps == 7
    assert plan(plain(steps=7), workers=1, samples=4, steps=3).steps == 3
    assert plan(plain(steps=7), workers=1, samples=None).steps == 7


def test_epochs_that_are_asked_for_win_over_the_recipe_s_steps(tmp_path: Path) -> None:
    path = tmp_path / "by_steps.py"
    path.write_text(f"from lockstep.recipe_file import load\ndef recipe(): return load({TINY!r}).override(steps=5)\n")
    assert RunSpec(recipe=str(path)).load().steps == 5
    assert RunSpec(recipe=str(path), epochs=2).load().steps is None


def test_a_file_that_would_hide_a_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def recipe(): ...")
    with pytest.raises(BadInput, match="has the same name as the module 'json' and would hide it: rename the file"):
        load(str(tmp_path / "json.py"))
