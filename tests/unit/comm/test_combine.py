"""Parts are combined in tree order, whatever makes the additions, and wherever a block ends."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.comm import combine, rank_tree
from lockstep.comm.combine import Combiner
from lockstep.comm.wire import OPS

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64]


def by_hand(parts: list[Tensor], op: str) -> Tensor:
    """Combine with torch alone, each node of the tree a new tensor."""
    registers = dict(enumerate(parts))
    for to, left, right in rank_tree.plan(len(parts)):
        registers[to] = rank_tree.torch_function(OPS.index(op))(registers[left], registers[right])
    total = registers[rank_tree.OUT] if len(parts) > 1 else parts[0]
    return total / len(parts) if op == "avg" else total


def parts_of(leaves: int, length: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(leaves)
    return [(torch.randn(length) * 1000).to(dtype) for _ in range(leaves)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combine, "BLOCK_BYTES", 64)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("leaves", range(1, 10))
@pytest.mark.parametrize("alias", [0, 1, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_result_may_replace_any_part(leaves: int, alias: int, dtype: torch.dtype) -> None:
    parts = parts_of(leaves, 37, dtype)
    expected = by_hand(parts, "sum")
    out = parts[min(alias, leaves - 1)]
    copy = torch.empty_like(out)
    Combiner(leaves).into(out, parts, OPS.index("sum"), [copy])
    assert torch.equal(out, expected)
    assert torch.equal(copy, expected)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("op", ["avg", "product", "min", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_every_operator_has_torchs_bits(leaves: int, op: str, dtype: torch.dtype) -> None:
    parts, out = parts_of(leaves, 129, dtype), torch.empty(129, dtype=dtype)
    Combiner(leaves).into(out, parts, OPS.index(op))
    assert torch.equal(out, by_hand(parts, op))


@pytest.mark.filterwarnings("error")
def test_an_overflow_is_silent_and_infinite() -> None:
    out = torch.full((5,), 3e38)
    Combiner(2).into(out, [out, out.clone()], OPS.index("sum"))
    assert out.isinf().all()


def test_nothing_to_combine_is_no_error() -> None:
    Combiner(3).into(torch.empty(0), [torch.empty(0)] * 3, OPS.index("sum"))


def test_buffers_are_kept_for_the_next_call() -> None:
    combiner, parts = Combiner(4), parts_of(4, 10, torch.float32)
    combiner.into(parts[0], parts, OPS.index("sum"))
    [(_, first)] = combiner._scratch.items()
    combiner.into(parts[0], parts, OPS.index("sum"))
    assert [s.data_ptr() for s in combiner._scratch[torch.float32, "cpu"]] == [s.data_ptr() for s in first]
