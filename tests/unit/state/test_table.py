"""The table of a state: every element is held once, and the hash of a tensor does not depend on who holds what."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.comm.group import Group
from lockstep.digest import BLOCK
from lockstep.errors import LockstepError
from lockstep.state.hashes import blocks, state_digest, summaries
from lockstep.state.holdings import Holding, whole
from lockstep.state.stream import gather, stream, windows
from lockstep.state.table import Piece, agree, tabulate

ALONE = Group.alone()


def row(name: str, numel: int, start: int, stop: int, dtype: str = "float32") -> list[object]:
    return [name, dtype, [numel], start, stop]


def test_pieces_come_in_order_whoever_holds_them() -> None:
    table = tabulate([[row("b", 9, 4, 9), row("a", 2, 0, 2)], [row("b", 9, 0, 4), row("empty", 0, 0, 0)]])
    assert [entry.name for entry in table.entries] == ["a", "b", "empty"]
    assert table.pieces == ((Piece(0, 2, 0),), (Piece(0, 4, 1), Piece(4, 9, 0)), (Piece(0, 0, 1),))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([[row("a", 9, 0, 5)], [row("a", 9, 4, 9)]], "holds the elements 4 to 5 of a twice"),
        ([[row("a", 9, 0, 3)], [row("a", 9, 4, 9)]], "holds the elements 3 to 4 of a not at all"),
        ([[row("a", 9, 0, 8)]], "holds 8 of the 9 elements of a"),
        ([[row("a", 9, 0, 9)], [row("a", 9, 9, 9, "float64")]], "rank 1 holds .*float64.* another rank .*float32"),
    ],
)
def test_what_is_not_held_once_is_named(ranks: list[list[list[object]]], words: str) -> None:
    with pytest.raises(LockstepError, match=words):
        tabulate(ranks)


def cut(name: str, tensor: torch.Tensor, cuts: list[int]) -> list[Holding]:
    """The same tensor in several holdings, the parts of each again in two."""
    flat, ends = tensor.flatten(), [0, *cuts, tensor.numel()]
    holdings = []
    for low, high in itertools.pairwise(ends):
        middle = (low + high) // 2
        parts = (flat[low:middle], flat[middle:high])
        holdings.append(Holding(name, tensor.dtype, tuple(tensor.shape), low, parts))
    return holdings


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3 * BLOCK), max_size=4))
def test_a_hash_does_not_depend_on_the_holdings(cuts: list[int]) -> None:
    tensor = torch.arange(3 * BLOCK + 17, dtype=torch.float32).view(-1, 5)
    held = cut("a", tensor, sorted(set(cuts) - {0}))
    assert state_digest(ALONE, held) == state_digest(ALONE, [whole("a", tensor)])
    table = agree(ALONE, held)
    assert len(list(blocks(table))) == 4
    assert torch.equal(gather(ALONE, table, held)["a"], tensor)
    assert torch.equal(torch.cat([part for _, part in stream(ALONE, table, held)]).view(tensor.shape), tensor)
    assert summaries(ALONE, table, held, numbers=True)["a"].mean == pytest.approx(float(tensor.double().mean()))


def test_large_tensors_travel_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.state.stream.WINDOW", 4)
    held = [whole("a", torch.arange(10)), whole("empty", torch.empty(0, 3))]
    table = agree(ALONE, held)
    assert [(window.start, window.stop) for window in windows(table)] == [(0, 4), (4, 8), (8, 10)]
    assert gather(ALONE, table, held)["empty"].shape == (0, 3)
