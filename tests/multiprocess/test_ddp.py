"""Our DistributedDataParallel trains as torch's does, over gloo and shm; and what happens where torch's would hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.devices import COLLECTIVES, KIND, ON_CPU, here, only_cpu
from tests.multiprocess import ddp_agreement as agreement
from tests.multiprocess import ddp_kinds as kinds
from tests.multiprocess import ddp_order as order
from tests.multiprocess import ddp_training as training
from tests.ranks import Ranks

SIZE = 3
BACKENDS = here(["gloo", "shm"], [COLLECTIVES])
FLOAT = "torch.float32, strides [200, 1]"


@pytest.fixture(scope="module", params=BACKENDS)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(SIZE, request.param) as started:
        yield started


def same(ranks: Ranks, case: Callable[..., Any], *args: Any) -> list[Any]:
    """Compare torch's numbers with ours on every rank; return ours."""
    results = ranks.run(case, *args)
    for rank, (expected, found) in enumerate(results):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), f"rank {rank}"
    return [found for _, found in results]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.01},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"exact": True},
        {"exact": True, "bucket_cap_mb": 0.05},
    ],
    ids=["plain", "many-buckets", "unused", "static", "exact", "exact-buckets"],
)
def test_trains_as_torch_does(ranks: Ranks, options: dict[str, Any]) -> None:
    same(ranks, training.trained, options)


def test_gradients_set_to_zero(ranks: Ranks) -> None:
    same(ranks, training.trained, {}, False)


@pytest.mark.parametrize(
    "case",
    [
        training.accumulated,
        training.unused_allowed,
        training.patterns,
        training.sync_batchnorm,
    ],
)
def test_as_torch_does(ranks: Ranks, case: Callable[..., Any]) -> None:
    same(ranks, case)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("cap", [None, 0.01], ids=["one-bucket", "many-buckets"])
def test_goes_on_after_an_error(ranks: Ranks, cap: float | None, accumulate: bool) -> None:
    same(ranks, training.after_an_error, cap, accumulate)


@pytest.mark.parametrize("by_model", [True, pytest.param(False, marks=only_cpu)], ids=["model", "optimizer"])
def test_gradients_on_their_way_can_be_set_to_zero_after_an_error(ranks: Ranks, by_model: bool) -> None:
    same(ranks, training.zeroed_after_an_error, by_model)


def test_gradients_are_views(ranks: Ranks) -> None:
    for storages, stays in ranks.run(training.views):
        assert storages == 1  # 0.3 MB: one bucket
        assert all(stays)


@pytest.mark.parametrize("everywhere", [True, False])
def test_unused_parameters_are_named(ranks: Ranks, everywhere: bool) -> None:
    where = "every rank" if everywhere else f"rank {SIZE - 1}"
    for outcome in ranks.attempt(training.unused, everywhere):
        assert outcome.error == "BadInput", outcome.trace
        assert f"2 parameters got no gradient in this backward: spare.weight ({where}), spare.bias ({where})" in (
            outcome.text
        )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("frozen", "parameter first.weight was frozen (requires_grad_(False)) after wrapping"),
        ("unfrozen", "parameter last.bias was unfrozen (requires_grad_(True)) after wrapping"),
        ("added", "parameter extra.weight was added after wrapping"),
        ("reshaped", "parameter spare.bias changed its shape from [3] to [4] after wrapping"),
        ("replaced", "parameter again.weight was replaced by another tensor after wrapping"),
        ("dtype", "parameter first.weight changed its dtype from torch.float32 to torch.float64 after wrapping"),
    ],
)
def test_a_change_after_wrapping_is_named(ranks: Ranks, how: str, words: str) -> None:
    for outcome in ranks.attempt(agreement.changed, how):
        assert outcome.error == "BadInput", outcome.trace
        assert words in outcome.text


@pytest.mark.parametrize("how", ["frozen", "unfrozen", "added", "replaced", "dtype"])
def test_torch_trains_on_after_a_change(ranks: Ranks, how: str) -> None:
    """What docs/ddp.md says of torch's; if this fails, torch's became better."""
    assert ranks.run(agreement.silent_in_torch, how) == [False] + [True] * (SIZE - 1)


def test_a_module_without_parameters_may_be_added(ranks: Ranks) -> None:
    ranks.run(agreement.harmless_change)


def test_buffers_are_those_of_rank_0(ranks: Ranks) -> None:
    for rank, (shared, own, count) in enumerate(ranks.run(training.buffers)):
        assert shared == 0.0
        assert own == rank
        assert count == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("shape", f"rank 0 has parameter last.weight: [3, 200] {FLOAT}; rank 2 has parameter last.weight: [4, 200]"),
        ("dtype", "rank 2 has parameter middle.weight: [200, 200] torch.float64"),
        ("name", f"rank 0 has parameter spare.weight: [3, 200] {FLOAT}; rank 2 has parameter other.weight"),
        ("fewer", "rank 2 has buffer norm.running_mean"),
        ("options", "bucket_cap_mb=1"),
        ("init_sync", "init_sync=False"),
    ],
)
def test_different_models_are_refused_on_all_ranks(ranks: Ranks, how: str, words: str) -> None:
    for outcome in ranks.attempt(agreement.different_models, how):
        assert outcome.error == "BadInput", outcome.trace
        assert words in outcome.text


@pytest.mark.parametrize(("divide", "accumulate"), [(True, False), (False, False), (True, True)])
def test_data_that_run_out_at_different_times(ranks: Ranks, divide: bool, accumulate: bool) -> None:
    found = same(ranks, training.joined, divide, accumulate)
    assert all(one == found[0] for one in found)


def test_a_join_that_ends_with_the_first(ranks: Ranks) -> None:
    assert all(outcome.error == "RuntimeError" for outcome in ranks.attempt(training.joined_early))


@pytest.mark.parametrize("exact", [False, True])
def test_mixed_dtypes(ranks: Ranks, exact: bool) -> None:
    limits = {"torch.bfloat16": 0.03, "torch.float16": 0.01, "torch.float64": 1e-6}
    for found in ranks.run(kinds.mixed_dtypes, exact):
        for dtype, error in found:
            assert error <= limits.get(dtype, 1e-6), dtype


@pytest.mark.parametrize(
    ("reentrant", "times", "options"),
    [(False, 2, {}), (True, 2, {"static_graph": True}), (True, 1, {})],
    ids=["plain", "reentrant", "reentrant last"],
)
def test_activation_checkpointing(ranks: Ranks, reentrant: bool, times: int, options: dict[str, Any]) -> None:
    same(ranks, kinds.checkpointed, reentrant, times, options)


def test_a_reentrant_checkpoint_is_named(ranks: Ranks) -> None:
    for outcome in ranks.attempt(kinds.checkpointed_by_mistake):
        assert outcome.error == "BadInput", outcome.trace
        assert "parameter layer.0" in outcome.text
        assert "twice" in outcome.text
        assert "use_reentrant=False" in outcome.text


@pytest.mark.thinned("ranks", 2)
@pytest.mark.parametrize(("compiler", "outside"), [("eager", False), ("aot_eager", False), ("eager", True)])
def test_compiled_model(ranks: Ranks, compiler: str, outside: bool) -> None:
    same(ranks, kinds.compiled, compiler, outside)


def test_copies_and_pickles(ranks: Ranks) -> None:
    assert ranks.run(agreement.copies) == [[]] * SIZE


def test_stock_arguments(ranks: Ranks) -> None:
    ranks.run(agreement.accepted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        here(
            ({"device_ids": [0]}, "found device 0 for a model on cpu"),
            ({"device_ids": [SIZE]}, f"found device {SIZE} for a model on {KIND}:"),
        ),
        ({"output_device": 0}, "output_device=0 without device_ids"),
        ({"mixed_precision": True}, "use torch.autocast"),
        ({"device_mesh": 1}, "process_group=mesh.get_group()"),
        ({"bucket_cap": 1}, "did you mean 'bucket_cap_mb_list'?"),
    ],
)
def test_refused_arguments(ranks: Ranks, options: dict[str, Any], words: str) -> None:
    for outcome in ranks.attempt(agreement.refused, options):
        assert words in outcome.text


@pytest.mark.parametrize("cap", [None, order.CAP], ids=["one-bucket", "many-buckets"])
@pytest.mark.parametrize("how", ["another order", "added to", "set to zero", "accumulated", "a part", "input only"])
def test_a_step_that_few_hooks_do_not_fit(ranks: Ranks, how: str, cap: float | None) -> None:
    same(ranks, order.surprised, how, cap)


def test_a_part_of_the_model_by_mistake_is_named_without_its_hooks(ranks: Ranks) -> None:
    for outcome in ranks.attempt(order.a_part_by_mistake):
        assert outcome.error == "BadInput", outcome.trace
        assert "layers.0.weight (rank 2)" in outcome.text


@pytest.mark.skipif(not ON_CPU, reason="the pretend device itself ends an addition to a gradient that is on its way")
def test_a_late_addition_is_found_without_its_hook(ranks: Ranks) -> None:
    for outcome in ranks.attempt(order.twice):
        assert outcome.error == "BadInput", outcome.trace
        assert "layers.5" in outcome.text
        assert "twice" in outcome.text


def test_a_model_that_changes_for_ever_keeps_its_hooks(ranks: Ranks) -> None:
    assert ranks.run(order.always_different) == [12] * SIZE


def test_exact_bits_depend_on_nothing() -> None:
    found = set()
    for backend in BACKENDS:
        with Ranks(SIZE, backend) as ranks:
            for cap in (None, 0.01, 0.3):
                found |= set(ranks.run(training.exact_bits, cap))
    assert len(found) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dead_rank_is_an_error_on_the_others(backend: str) -> None:
    with Ranks(SIZE, backend) as ranks:
        first, second, third = ranks.attempt(training.die)
        assert third.died
        for outcome in (first, second):
            assert outcome.error in ("RuntimeError", "PeerLost", "DistBackendError"), outcome.trace
