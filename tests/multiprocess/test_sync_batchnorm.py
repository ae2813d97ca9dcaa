"""SyncBatchNorm on 2 and 3 ranks is BatchNorm on the concatenated batch; and what happens where ranks disagree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.commands import RECIPES, CommandLine
from tests.devices import COLLECTIVES, KIND, only_cpu
from tests.multiprocess import batchnorm_cases as cases
from tests.multiprocess.batchnorm_cases import BACKENDS, Arrays, Case, together, whole
from tests.ranks import Outcome
from tests.ranks import Ranks as Pool

SIZES = [2, 3]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
NORMED = str(RECIPES / "normed.py")


class Ranks:
    """Three processes, and a group of the first 2 and of all 3 on every backend."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def call(self, backend: str, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `function(group, *arguments)` on the first `size` ranks; an error on one of them is an error here."""
        return self._pool.run(cases.within, backend, size, function, *arguments)[:size]

    def try_call(self, backend: str, size: int, function: Callable[..., Any], *arguments: Any) -> list[Outcome]:
        """Do the same, and return how it ended."""
        return self._pool.attempt(cases.within, backend, size, function, *arguments)[:size]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Pool(max(SIZES), COLLECTIVES) as pool:
        yield Ranks(pool)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SIZES, ids=lambda size: f"{size} ranks")
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def check(found: Arrays, expected: Arrays, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max(initial=0.0)))
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * scale, err_msg=name)


@st.composite
def drawn(draw: st.DrawFn, size: int) -> Case:
    rows = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    rest = (draw(st.integers(1, 9)), *draw(st.lists(st.integers(1, 4), max_size=3)))
    assume(sum(rows) * int(np.prod(rest[1:])) > 1)
    options = {
        "affine": draw(st.booleans()),
        "momentum": draw(st.sampled_from([None, 0.1, 0.7])),
        "track_running_stats": draw(st.booleans()),
        "eps": draw(st.sampled_from([1e-5, 1e-3])),
    }
    return Case(
        rows=tuple(rows),
        rest=rest,
        dtype=draw(st.sampled_from(["float32", "float64"])),
        seed=draw(st.integers(0, 99)),
        steps=draw(st.integers(1, 2)),
        channels_last=draw(st.booleans()),
        offset=draw(st.sampled_from([0.0, 3.0])),
        options=options,
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_equal_to_batchnorm_on_the_whole_batch(ranks: Ranks, backend: str, size: int, data: st.DataObject) -> None:
    case = data.draw(drawn(size))
    check(together(ranks.call(backend, size, cases.part, case)), whole(case), TOLERANCE[case.dtype])


@pytest.mark.parametrize("rest", [(3,), (2, 3), (2, 2, 2)], ids=str)
def test_gradcheck(ranks: Ranks, backend: str, size: int, rest: tuple[int, ...]) -> None:
    case = Case(rows=(2, 1, 2)[:size], rest=rest, dtype="float64")
    assert all(ranks.call(backend, size, cases.check_gradients, case))


@pytest.mark.parametrize("rest", [(70,), (5, 33, 17), (3, 2, 3, 9)], ids=str)
def test_larger_batches_cut_unevenly(ranks: Ranks, backend: str, size: int, rest: tuple[int, ...]) -> None:
    case = Case(rows=(40, 1, 7)[:size], rest=rest)
    check(together(ranks.call(backend, size, cases.part, case)), whole(case), 1e-5)


def test_all_ranks_without_samples(ranks: Ranks, backend: str, size: int) -> None:
    case = Case(rows=(0,) * size, rest=(3, 2))
    for found in ranks.call(backend, size, cases.part, case):
        assert found["output"].shape == found["input.grad"].shape == (0, 3, 2)
        assert found["num_batches_tracked"] == 0


def test_one_value_in_all_is_refused_by_all(ranks: Ranks, backend: str, size: int) -> None:
    case = Case(rows=(0, 1, 0)[:size], rest=(3,))
    for found in ranks.try_call(backend, size, cases.part, case):
        assert found.error == "ValueError"
        assert "Expected more than 1 value per channel" in found.text


def test_constant_channel(ranks: Ranks, backend: str, size: int) -> None:
    case = Case(rows=(3,) * size, rest=(2, 4), spread=0.0, offset=7.0)
    found = together(ranks.call(backend, size, cases.part, case))
    check(found, whole(case), 1e-5 / 1e-5**0.5)  # the deviation is sqrt(eps), and so are errors enlarged
    assert (found["running_var"] == np.float32(0.9)).all()


@pytest.mark.parametrize("rest", [(4,), (4, 6, 6)], ids=str)
def test_large_means_are_as_exact_as_one_batchnorm(
    ranks: Ranks, backend: str, size: int, rest: tuple[int, ...]
) -> None:
    case = Case(rows=(16, 5, 11)[:size], rest=rest, offset=1e4, spread=0.1)
    exact = walk_exactly(case)
    found, stock = together(ranks.call(backend, size, cases.part, case)), whole(case)
    for name, value in exact.items():
        error, stock_error = (np.abs(one[name] - value).max() for one in (found, stock))
        # A single-precision mean of 1e4 is off by up to 1e-3, a hundredth of the deviation, in stock BatchNorm too.
        assert error <= 2 * stock_error + 1e-2 * max(1.0, np.abs(value).max()), name
    np.testing.assert_allclose(found["running_var"], exact["running_var"], rtol=1e-4)


def walk_exactly(case: Case) -> Arrays:
    """Return the results for the same single-precision values in double precision."""

    class Exact(Case):
        def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
            x, grad = super().batch(step)
            return x.double(), grad.double()

    exact = Exact(**case.__dict__)
    return cases.walk(exact.layer().double(), exact, slice(None))


@pytest.mark.parametrize("rest", [(8,), (8, 5, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_under_autocast(
    ranks: Ranks, backend: str, size: int, dtype: torch.dtype, rest: tuple[int, ...]
) -> None:
    case = Case(rows=(4, 6, 3)[:size], rest=rest)
    found = together(ranks.call(backend, size, cases.part, case, dtype))
    check(found, whole(case, dtype), 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_layer_of_half_precision(ranks: Ranks, backend: str, size: int, dtype: str) -> None:
    case = Case(rows=(4, 6, 3)[:size], rest=(8, 3), dtype=dtype)
    check(
        together(ranks.call(backend, size, cases.part, case)), whole(case), 8 * torch.finfo(getattr(torch, dtype)).eps
    )


def test_the_same_bits_again_and_on_every_backend(ranks: Ranks, size: int) -> None:
    case = Case(rows=(9, 2, 5)[:size], rest=(6, 7), steps=3)
    runs = [ranks.call(backend, size, cases.part, case) for backend in BACKENDS for _ in range(2)]
    for run in runs[1:]:
        for found, first in zip(run, runs[0], strict=True):
            assert all(np.array_equal(found[name], first[name]) for name in first)


def test_one_rank_in_evaluation_mode_is_named(ranks: Ranks, backend: str, size: int) -> None:
    for found in ranks.try_call(backend, size, cases.one_evaluates, 1):
        assert found.error == "BadInput"
        assert "SyncBatchNorm(4): rank 1 is in evaluation mode and rank 0" in found.text
        assert "call model.train() on every rank" in found.text
    ranks.call(backend, size, cases.part, Case(rows=(2,) * size, rest=(3,)))  # the group goes on working


def test_frozen_layers_and_evaluation_on_one_rank(ranks: Ranks, backend: str, size: int) -> None:
    for gradient in ranks.call(backend, size, cases.frozen):
        np.testing.assert_allclose(gradient, 3 / (1 + 1e-5) ** 0.5, rtol=1e-6)


def test_a_workspace_is_not_reused_while_a_graph_needs_it(ranks: Ranks, backend: str, size: int) -> None:
    for same in ranks.call(backend, size, cases.graphs):
        assert all(same)


def test_second_derivative_is_refused(ranks: Ranks, backend: str) -> None:
    for found in ranks.try_call(backend, 2, cases.twice_differentiated):
        assert found.error, found.value
        assert "SyncBatchNorm does not support second derivatives" in found.text


@pytest.mark.parametrize(
    ("shape", "words"),
    [((4,), "expected at least 2D input (got 1D input)"), ((2, 5), "running_mean should contain 5 elements not 3")],
)
def test_wrong_shapes_are_refused_as_by_batchnorm(ranks: Ranks, shape: tuple[int, ...], words: str) -> None:
    for found in ranks.try_call(COLLECTIVES, 2, cases.wrong_shape, shape):
        assert found.error, found.value
        assert words in found.text


def test_a_filler_counts_for_nothing(ranks: Ranks, backend: str, size: int) -> None:
    case = Case(rows=(4, 0, 3)[:size], rest=(3, 4))
    check(together(ranks.call(backend, size, cases.silent, case, 1)), whole(case), 1e-5)


@only_cpu
def test_torch_ddp_takes_it_on_the_cpu(ranks: Ranks, backend: str, size: int) -> None:
    alone = ranks.call(backend, size, cases.under_torch_ddp, False)[0]
    for found in ranks.call(backend, size, cases.under_torch_ddp, True):
        check(found, alone, 1e-5)


@pytest.mark.parametrize("strategy", ["torch-ddp", "ddp"])
def test_a_run_with_short_batches_says_that_it_depends_on_workers(strategy: str, cli: CommandLine) -> None:
    """In the last step one lane of four has a sample: the others are fillers, which meet all the same."""
    command = ["run", NORMED, "--workers", "2", "--lanes", "4", "--sync-batchnorm", "--strategy", strategy]
    done = cli(*command, "--device", KIND, "--json", "--out", "out")
    assert done.code == 0, done.text
    assert json.loads(done.out)["result"]["depends_on_workers"] == "SyncBatchNorm"


def test_a_comparison_marks_the_digests(cli: CommandLine) -> None:
    done = cli(
        "compare",
        "cifar100",
        "--strategies",
        "torch-ddp",
        "--steps",
        "2",
        "--repeats",
        "1",
        "--sync-batchnorm",
        "--device",
        KIND,
    )
    assert done.code == 0, done.text
    assert "* SyncBatchNorm: loss, accuracy and digest depend on the number of workers" in done.out
