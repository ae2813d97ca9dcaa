"""How many gradients a worker holds while it folds its lanes: as counted on the real model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lockstep.lanes.fold_memory import FoldMemory, fold_memory
from lockstep.lanes.schedule import owned_lanes
from lockstep.lanes.tree import cover, folding
from lockstep.strategies.flat_model import LARGE, FlatModel


@pytest.mark.parametrize(
    ("lanes", "workers", "expected"),
    [
        (1, 1, FoldMemory(0, 0, 1)),
        (2, 1, FoldMemory(0, 0, 1)),
        (4, 1, FoldMemory(0, 0, 2)),
        (8, 1, FoldMemory(0, 0, 3)),
        (16, 1, FoldMemory(0, 0, 4)),
        (8, 2, FoldMemory(1, 0, 1)),
        (8, 8, FoldMemory(1, 0, 0)),
        (8, 3, FoldMemory(1, 0, 1)),
    ],
)
def test_a_worker(lanes: int, workers: int, expected: FoldMemory) -> None:
    assert fold_memory(lanes, workers, 0) == expected


def test_an_accelerator_allocates_all_and_lets_nothing_wait() -> None:
    assert fold_memory(8, 1, 0, lazy=False) == FoldMemory(1, 2, 0)
    assert fold_memory(1, 1, 0, lazy=False) == FoldMemory(1, 0, 0)


def test_a_running_sum_has_one_buffer() -> None:
    assert fold_memory(8, 2, 1, exact=False) == FoldMemory(1, 0, 1)
    assert fold_memory(2, 2, 1, exact=False) == FoldMemory(1, 0, 0)


@given(st.integers(1, 20), st.integers(1, 6), st.data())
def test_as_the_real_model_writes(lanes: int, workers: int, data: st.DataObject) -> None:
    """Fold the lanes of one worker on a real model, and count the buffers that are not zero and the gradients kept."""
    workers = min(workers, lanes)
    rank = data.draw(st.integers(0, workers - 1))
    model = nn.Linear(LARGE, 1, bias=False)
    flat = FlatModel(model, [(0,)], 1, keep=workers == 1)
    flat.attach([torch.zeros(section.numel) for section in flat.sections], fill=True)
    nodes = cover(lanes, owned_lanes(lanes, workers, rank))
    plans = [folding(node) for node in nodes]
    spare = max(buffers for _, buffers in plans) - 1
    scratch = [torch.zeros(flat.sections[0].numel) for _ in range(spare)]
    partials = [torch.zeros(flat.sections[0].numel) for _ in nodes]
    waited = 0
    for partial, (folds, _) in zip(partials, plans, strict=True):
        for fold in folds:
            flat.begin(fold, [(partial,), *((one,) for one in scratch)])
            model(torch.ones(1, LARGE)).sum().backward()
            kept = flat._kept._sums.values() if flat._kept else [flat._waiting]
            waited = max(waited, sum(map(len, kept)))
            flat.end()
    assert all(bool(partial.any()) == (workers > 1) for partial in partials)
    held = fold_memory(lanes, workers, rank)
    written = [sum(bool(one.any()) for one in places) for places in (partials, scratch)]
    assert tuple(held) == (*written, waited)
    if workers == 1:
        (total,) = flat.sums(0, partials[0])
        assert torch.equal(total.values, torch.full((LARGE,), float(lanes)))
