"""Parity: where made-up runs part, and the cause that was built into them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.report.collect import FinishedRun
from lockstep.report.parity import parity, parting, unsteady
from lockstep.train.schema.fingerprints_jsonl import Fingerprint, FingerprintLine
from tests.unit.report.causes import fingerprints, run

START = fingerprints(0, weight=1.0, bias=1.0, buffers={"norm.running_mean": 1.0})
NEAR, FAR = 1.0 + 1e-7, 1.01


def first(**changes: object) -> FinishedRun:
    return run("single", fingerprints=[START, fingerprints(1, weight=2.0, bias=1.0)], **changes)  # type: ignore[arg-type]


def test_same_digest_is_all_there_is_to_say() -> None:
    assert parity(first(), run("ddp", 2, state="a")) == "same bits"


def test_step_parameter_and_size_are_named() -> None:
    other = run("torch-ddp", 2, state="b", fingerprints=[START, fingerprints(1, weight=2.0, bias=NEAR)])
    assert parity(first(), other) == (
        "differs first after step 1 in bias, by up to 1e-07 of the norm at the end (bias): other order of summation"
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"threads": 2}, "other thread count (2 against 1)"),
        ({"torch": "2.12.0"}, "other version of torch (2.12.0 against 2.13.0)"),
        (
            {"depends_on_workers": "SyncBatchNorm"},
            "BatchNorm over other batches (SyncBatchNorm over 2 against 1 workers)",
        ),
        ({"fingerprints": [fingerprints(0, weight=NEAR, bias=1.0)]}, "other order of summation"),
        (
            {"fingerprints": [fingerprints(0, weight=1.0, bias=1.0, buffers={"norm.running_mean": FAR})]},
            "running statistics of one",
        ),
        ({"fingerprints": [fingerprints(0, weight=FAR, bias=1.0)], "weights": [33.0, 31.0]}, "mean of means"),
        ({"fingerprints": [fingerprints(0, weight=FAR, bias=1.0)]}, "another update (scaling or optimizer)"),
        ({"fingerprints": [fingerprints(0, weight=FAR, bias=1.0)], "losses": (4.1, 3.0)}, "dropout seeds"),
        (
            {
                "fingerprints": [fingerprints(0, weight=FAR, buffers={"n.running_var": FAR})],
                "losses": (4.1, 3.0),
                "lanes": 8,
            },
            "BatchNorm over other batches (a worker's whole batch at once",
        ),
        ({"fingerprints": []}, "other order of summation"),
    ],
)
def test_causes(changes: dict[str, object], cause: str) -> None:
    lanes = {"lanes": changes["lanes"]} if "lanes" in changes else {}
    found = parity(first(**lanes), run("torch-ddp", 2, state="b", **changes))  # type: ignore[arg-type]
    assert cause in found


def test_rounding_that_an_optimizer_makes_large_in_one_tensor() -> None:
    """A bias before BatchNorm has a gradient of 0 but for rounding, and Adam's step does not depend on its size."""
    mine = run("single", fingerprints=[fingerprints(0, weight=1.0, bias=1.0, head=1.0)])
    other = run("torch-ddp", 2, state="b", fingerprints=[fingerprints(0, weight=NEAR, bias=FAR, head=NEAR)])
    assert "other order of summation (far more in bias: Adam and its like" in parity(mine, other)
    every = run("torch-ddp", 2, state="b", fingerprints=[fingerprints(0, weight=FAR, bias=FAR, head=NEAR)])
    assert parity(mine, every).endswith("another update (scaling or optimizer)")


def test_a_peer_has_an_order_of_its_own() -> None:
    other = run("lightning", 2, state="b", fingerprints=[fingerprints(0, weight=FAR, bias=1.0)], losses=(4.1, 3.0))
    assert parity(first(), other).endswith("other samples in each step (a peer shuffles on its own), and dropout seeds")


def test_strategies_that_promise_the_same_bits_leave_the_recipe_to_blame() -> None:
    other = run("ddp", 2, state="b", fingerprints=[fingerprints(0, weight=NEAR, bias=1.0)])
    assert "the recipe is not deterministic" in parity(first(), other)


def test_a_late_difference_without_fingerprints_between_is_summation_grown() -> None:
    lines = [fingerprints(step, weight=1.0) for step in (0, 1, 2)]
    mine, other = (
        run(fingerprints=[*lines, fingerprints(4, weight=1.0)]),
        run("torch-ddp", 2, state="b", fingerprints=[*lines, fingerprints(4, weight=FAR)]),
    )
    assert parity(mine, other).endswith("other order of summation (grown over the steps since)")


def test_only_the_optimizer_differs() -> None:
    other = run("torch-ddp", 2, state="b", fingerprints=[START])
    assert parity(first(), other).startswith("differs in the optimizer's state alone")


def without_norms(state: str) -> FingerprintLine:
    return FingerprintLine(step=0, parameters={"weight": Fingerprint(state * 16, None, None)}, buffers={})


def test_large_models_have_no_norms() -> None:
    parted = parting([without_norms("a")], [without_norms("b")])
    assert parted is not None
    assert (parted.tensor, parted.largest) == ("weight", 0.0)


def test_weights_that_are_too_large_to_compare_are_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.train.weights_difference.MOST_BYTES", 7)
    runs = []
    for state in ("a", "b"):
        (tmp_path / state).mkdir()
        (tmp_path / state / "final.safetensors").write_bytes(bytes(8))
        made = run("ddp", 2, state=state, fingerprints=[without_norms(state)])
        runs.append(replace(made, folder=tmp_path / state))
    words = "in weight (weights of more than 1 GiB are not compared value by value): "
    assert words in parity(*runs)


def test_a_counter_is_no_size() -> None:
    mine = fingerprints(0, weight=1.0, buffers={"norm.num_batches_tracked": 1.0})
    other = fingerprints(0, weight=NEAR, buffers={"norm.num_batches_tracked": 4.0})
    found = parting([mine], [other])
    assert found is not None
    assert (found.buffers, found.largest_tensor) == (0.0, "weight")


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (0.5, "in weight, by up to 5.0e-01 at the end (weight): "),
        (math.inf, "in weight, with infinite values at the end (weight): "),
        (math.nan, "in weight, with values at the end that are no numbers on one side only (weight): "),
        (0.0, "in weight, by up to 1e-02 of the norm at the end (weight): "),
    ],
)
def test_the_difference_at_the_end(monkeypatch: pytest.MonkeyPatch, gap: float, words: str) -> None:
    monkeypatch.setattr("lockstep.report.parity.largest_difference", lambda first, other: (gap, "weight"))
    other = run("torch-ddp", 2, state="b", fingerprints=[fingerprints(0, weight=FAR)])
    assert words in parity(run(fingerprints=[START]), other)


def test_repeats_that_differ() -> None:
    same, other = run(fingerprints=[START]), run(state="b", fingerprints=[fingerprints(0, weight=NEAR, bias=1.0)])
    assert unsteady([same, same]) == ""
    assert unsteady([same, same, other]) == "repeats 1 and 3 differ, first after step 0 in weight: not deterministic"


def test_a_stock_pipeline_draws_dropout_by_stage() -> None:
    far = [fingerprints(0, weight=FAR, buffers={"n.running_var": FAR})]
    other = run("torch-pipeline", 2, state="b", fingerprints=far, losses=(4.1, 3.0), lanes=8)
    assert "dropout seeds (drawn by each stage, not along a lane)" in parity(first(lanes=8), other)
    near = [fingerprints(0, weight=1.0, bias=1.0, buffers={"norm.running_mean": FAR})]
    assert "running statistics lane after lane" in parity(
        first(), run("torch-pipeline", 2, state="b", fingerprints=near)
    )
