"""What ranks have is described so that any difference shows, and named so that it can be found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from lockstep.data.source import open_source
from lockstep.train.same_start import data_marks, first_difference, model_marks

SAME: list[dict[str, str]] = [{"the number of samples": "4", "sample 0": "aa"}] * 3


def test_no_difference() -> None:
    assert first_difference(SAME) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"the number of samples": "5", "sample 0": "aa"}, "rank 1 differs from rank 0 in the number of samples: 4 on"),
        ({"the number of samples": "4", "sample 0": "ab"}, "in sample 0: aa on rank 0, ab on rank 1"),
        ({"the number of samples": "4"}, "in sample 0: aa on rank 0, absent on rank 1"),
        ({"the number of samples": "5"}, r"\(and 1 more\)"),
    ],
)
def test_the_rank_and_what_differs_are_named(changed: dict[str, str], words: str) -> None:
    difference = first_difference([SAME[0], changed, SAME[0]])
    assert difference is not None
    assert re.search(words, difference.text)
    others = first_difference([SAME[0], changed, changed])
    assert others is not None
    assert others.text.endswith("; other ranks that differ: 2")


class Letters(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        yield from "abc"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([torch.zeros(3), torch.ones(3)], [torch.zeros(3), torch.full((3,), 2.0)]),
        ([1, 2, 3], [1, 2, 4]),
        ([1, 2, 3], [1, 2]),
        ([("a", 1)], [("a", 2)]),
        ([{"a": np.arange(3)}], [{"a": np.arange(1, 4)}]),
        ([{"a": 1}], [{"b": 1}]),
        ([b"x"], [b"y"]),
        ([torch.zeros(3, dtype=torch.bfloat16)], [torch.ones(3, dtype=torch.bfloat16)]),
        ([np.array(["a", None], dtype=object)], [np.array(["b", None], dtype=object)]),
        (Letters(), ["a", "b", "c"]),
    ],
)
def test_other_data_has_other_marks(one: Any, other: Any) -> None:
    assert data_marks(open_source(one), 0) == data_marks(open_source(one), 0)
    assert data_marks(open_source(one), 0) != data_marks(open_source(other), 0)


def test_data_that_draws_random_numbers_is_seeded_and_leaves_the_generators_alone() -> None:
    class Noisy:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return torch.rand(2), np.random.rand()

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = data_marks(open_source(Noisy()), 0)
    assert torch.equal(torch.rand(1), expected)
    assert data_marks(open_source(Noisy()), 0) == first


def test_data_that_cannot_be_read_is_left_to_the_training() -> None:
    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            raise OSError("gone")

    assert data_marks(open_source(Broken()), 0) == {"the number of samples": "4", "reading it": "OSError"}


def test_models_differ_by_weights_and_buffers() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = model_marks(one)
    assert {name.partition(" ")[0] for name in before} == {"parameter", "buffer"}
    with torch.no_grad():
        next(one.parameters())[0, 0] += 1
    assert [name for name in before if model_marks(one)[name] != before[name]] == ["parameter 0.weight"]
