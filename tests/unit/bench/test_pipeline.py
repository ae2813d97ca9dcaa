"""`bench pipeline`: what is timed on which model, the ideal, and figures that compare the right two sides."""

from __future__ import annotations

import pytest

from lockstep.bench.bench_pipeline import (
    ALONE,
    BENCHMARK,
    BYTES,
    FSDP,
    HALVED,
    IDEAL,
    MLP,
    NARROW,
    PIPELINE,
    SHARDED,
    SINGLE,
    STOCK,
    UPDATE,
    StepTimes,
    Times,
    check,
    ideals,
    lanes_table,
    memory_figures,
    time_figures,
    ways_of,
    ways_table,
)
from lockstep.bench.contract import Quantity, settings
from lockstep.errors import BadInput


def times(**samples: tuple[float, ...]) -> Times:
    """Return times of the deep MLP in two starts, by the way's name with `_` for what a name cannot have."""
    named = {name.replace("__", ", ").replace("_", " "): own for name, own in samples.items()}
    return {(MLP, way): StepTimes(model=MLP, way=way, samples=own, starts=2) for way, own in named.items()}


def test_what_is_timed_on_which_model() -> None:
    assert {FSDP, SHARDED, PIPELINE, STOCK} <= set(ways_of(MLP, (1, 8)))
    names = [way.name for way in ways_of(NARROW, (1, 8))]
    assert names == ["pipeline, 1 lanes", "pipeline, 8 lanes", "layers, 1 lanes", "layers, 8 lanes"]
    assert not {way.strategy for way in ways_of(BYTES, (1, 8))} & {"torch-fsdp", "sharded"}


def test_the_ideal_adds_the_bubble_to_the_lanes_and_not_to_the_update() -> None:
    measured = times(**{ALONE.replace(" ", "_"): (0.8, 1.6), UPDATE.replace(" ", "_"): (0.1, 0.3)})
    (ideal,) = ideals(measured)
    assert (ideal.way, ideal.starts) == (IDEAL, 2)
    assert ideal.samples == pytest.approx((1.0, 2.1))


def test_ratios_are_taken_in_each_start() -> None:
    stock, ours = STOCK.name, HALVED.name
    measured = {
        **times(ideal=(1.0, 2.0)),
        (MLP, ours): StepTimes(model=MLP, way=ours, samples=(1.0, 2.4), starts=2),
        (MLP, stock): StepTimes(model=MLP, way=stock, samples=(2.0, 3.0), starts=2),
        (MLP, SHARDED.name): StepTimes(model=MLP, way=SHARDED.name, samples=(1.0, 1.0), starts=2),
        (MLP, FSDP.name): StepTimes(model=MLP, way=FSDP.name, samples=(2.0, 1.0), starts=2),
    }
    ratios = {one.what: (round(one.ratio.value, 6), one.goal.limit) for one in time_figures(measured)}
    assert ratios == {
        f"{MLP}: pipeline, zero-bubble / ideal, 8 lanes": (1.1, 1.1),
        f"{MLP}: pipeline, zero-bubble / torch-pipeline (1F1B), 8 lanes": (0.65, 0.9),
        f"{MLP}: sharded / torch-fsdp, both on gloo": (0.75, 0.8),
    }
    rows = {row["way"]: row.get("ratio") for row in ways_table(measured).rows}
    assert rows[ours] == Quantity(value=1.7 / 2.5)
    assert rows[FSDP.name] is None


def test_the_memory_of_the_largest_worker() -> None:
    def both(above: float) -> tuple[Quantity, Quantity]:
        return Quantity(value=above), Quantity(value=above + 300.0)

    peaks = {(MLP, SINGLE.name): both(400.0), (MLP, PIPELINE.name): both(240.0), (MLP, FSDP.name): both(1.0)}
    (one,) = memory_figures(peaks)
    assert one.ratio.value == pytest.approx(0.6), "above the imports"
    assert one.goal.limit == 0.65


def test_the_sweep_as_a_table() -> None:
    measured = {
        (NARROW, f"{way}, {n} lanes"): StepTimes(model=NARROW, way=way, samples=(0.1 * n,))
        for way in ("pipeline", "layers")
        for n in (1, 2)
    }
    rows = lanes_table(measured, (1, 2)).rows
    assert [row["lanes"] for row in rows] == [1, 2]
    assert rows[0]["bubble"] == Quantity(value=0.5)


def test_lanes_that_do_not_divide_the_batch() -> None:
    with pytest.raises(BadInput, match="--lanes 3: expected a divisor of 256, the global batch of 'narrow mlp'"):
        check(settings(BENCHMARK.options, {"lanes": (3,)}, quick=True))
    check(settings(BENCHMARK.options, {}, quick=False))
