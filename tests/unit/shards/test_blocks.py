"""Which weights are fetched together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.shards import blocks
from lockstep.shards.blocks import WeightBlock, choose_blocks, uses_of_weights

BIG = blocks.LARGE


def test_a_block_is_the_outermost_module_that_is_not_too_large() -> None:
    sizes = {f"layer{i}.{part}": BIG for i in range(8) for part in ("a", "b")}
    uses = {name: [("net", name.split(".")[0], name)] for name in sizes}
    chosen = choose_blocks(sizes, uses)
    assert chosen == [WeightBlock(f"layer{i}", (f"layer{i}.a", f"layer{i}.b")) for i in range(8)]


def test_one_module_that_is_too_large_is_a_block_by_itself() -> None:
    sizes = {"table": 20 * BIG, "head": BIG}
    chosen = choose_blocks(sizes, {"table": [("net", "table")], "head": [("net", "head")]})
    assert chosen == [WeightBlock("table", ("table",)), WeightBlock("head", ("head",))]


@pytest.mark.parametrize(
    ("size", "uses"),
    [
        (BIG - 1, [("net",)]),
        (BIG, []),
        (BIG, [()]),
        (BIG, [("first",), ("last",)]),
    ],
    ids=["small", "never used", "used by the model itself", "used in two places"],
)
def test_what_stays_with_every_worker(size: int, uses: list[tuple[str, ...]]) -> None:
    assert choose_blocks({"weight": size}, {"weight": uses}) == []


class Odd(nn.Module):
    """A layer called, a layer whose weight is used by a function, one tied to another, one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(4, 4)
        self.inner = nn.Sequential(first, nn.Linear(4, 4))
        self.by_hand, self.tied, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = first.weight

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.tied(F.linear(self.inner(values), self.by_hand.weight))
        return last


def test_uses_are_seen_in_the_calls_of_modules() -> None:
    model = Odd()
    uses = uses_of_weights(model, lambda: model(torch.zeros(2, 4)))
    assert uses["inner.1.weight"] == [("inner", "inner.1")]
    assert uses["inner.0.weight"] == [("inner", "inner.0"), ("tied",)]
    assert uses["by_hand.weight"] == [()]
    assert "unused.weight" not in uses
    assert not model.inner._forward_hooks, "nothing is left on the model"
