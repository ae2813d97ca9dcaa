"""Figures compare the right two sides and take ratios as they should, from made-up measurements."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.bench import bench_collectives, bench_ddp, bench_syncbn
from lockstep.bench.bench_collectives import COPY, DDP, GLOO, IN_PLACE, LARGE, MIB, SHM, readable
from lockstep.bench.bench_data import BENCHMARK as DATA
from lockstep.bench.bench_data import HeldData, _paired, table
from lockstep.bench.bench_ddp import BASE, DROP_IN, IN_ROUNDS, IN_TURN, OURS, TREE, Timing, in_pair
from lockstep.bench.bench_measure import pair_cost
from lockstep.bench.contract import Figure, Quantity, median, settings
from lockstep.bench.ranks.data.names import LIST
from lockstep.errors import BadInput


def ratios(figures: list[Figure]) -> dict[str, tuple[float, float, bool | None]]:
    """Return ratio, goal and judgement by name."""
    return {one.what: (round(one.ratio.value, 6), one.goal.limit, one.reached) for one in figures}


def test_collectives() -> None:
    times = {
        (2, LARGE, GLOO): [0.024, 0.020, 0.030],
        (2, LARGE, SHM): [0.012, 0.012, 0.010],
        (2, LARGE, IN_PLACE): [0.003] * 3,
        (2, LARGE, COPY): [0.0025] * 3,
        (2, 256, GLOO): [0.0005] * 3,
        (2, 256, SHM): [0.00002] * 3,
        (4, 256, GLOO): [0.0005] * 3,
        (4, 256, SHM): [0.00004] * 3,
        (2, 26_000_000, DDP[0]): [0.1] * 3,
        (2, 26_000_000, DDP[1]): [0.08] * 3,
        (3, 256, GLOO): [1.0] * 3,
        (3, 256, SHM): [1.0] * 3,
    }
    figures = bench_collectives.figures({key: median(samples) for key, samples in times.items()})
    assert ratios(figures) == {
        "gloo / shm, 256 B, 2 workers": (25.0, 10.0, True),
        "gloo / shm, 25 MiB, 2 workers": (2.0, 3.0, False),
        "gloo / shm in place, 25 MiB, 2 workers": (8.0, 6.0, True),
        "shm in place / copy limit, 25 MiB, 2 workers": (1.2, 1.5, True),
        "torch DDP on shm / torch DDP on gloo, 24.8 MiB, 2 workers": (0.8, 0.9, True),
        "gloo / shm, 256 B, 4 workers": (12.5, 25.0, False),
    }
    large = next(one for one in figures if one.what.startswith("gloo / shm, 25 MiB"))
    assert (large.ours.name, large.theirs.name) == (SHM, GLOO)
    assert large.ratio.ends == pytest.approx((20 / 12, 3.0))


def test_sizes_read_well() -> None:
    assert [readable(n) for n in (256, 65536, 25 * MIB, 26_000_000)] == ["256 B", "64 KiB", "25 MiB", "24.8 MiB"]


def timing(way: str, *samples: float, workers: int = 2, starts: int = 1, memory: float | None = None) -> Timing:
    weighed = None if memory is None else Quantity(value=memory)
    return Timing(model="mlp", workers=workers, way=way, samples=samples, starts=starts, memory=weighed)


def test_ddp_takes_a_ratio_in_each_start() -> None:
    timings = [
        timing(BASE, 0.3, 0.1, 0.1, memory=200.0),
        timing(DROP_IN, 0.01),
        timing(in_pair(BASE), 0.3, 0.1, 0.1),
        timing(in_pair(DROP_IN), 0.09),
        timing(OURS, 0.05, memory=120.0),
        timing(in_pair(TREE), 0.02, 0.04, 0.06, 0.06, 0.05, 0.05, starts=3),
        timing(in_pair(IN_TURN), 0.03, 0.03, 0.02, 0.02, 0.04, 0.04, starts=3),
        timing(IN_ROUNDS, 0.05),
        timing(IN_ROUNDS, 0.06, workers=8),
    ]
    figures = bench_ddp.figures(timings, many=8)
    exact = "mlp: strategy ddp, exact / inexact, 4 lanes a worker, in the arena"
    assert ratios(figures) == {
        "mlp: strategy ddp / torch DDP on gloo": (0.5, 0.55, True),
        "mlp: drop-in / torch DDP, both on gloo": (0.9, 1.0, True),
        exact: (1.25, 1.03, False),
        "mlp: strategy ddp on 8 workers / on 2, same batch and lanes": (1.2, 1.4, True),
        "mlp: memory of strategy ddp / torch DDP on gloo": (0.6, 0.6, True),
    }
    assert next(one.ratio.ends for one in figures if one.what == exact) == (1.0, 3.0)


def test_ddp_shows_every_way_beside_torch_ddp() -> None:
    timings = [timing(BASE, 0.1, memory=200.0), timing(OURS, 0.05, memory=120.0), timing(IN_ROUNDS, 0.06, workers=8)]
    (row,) = bench_ddp.steps_table(timings).rows
    assert [row[way] for way in (BASE, OURS)] == [Quantity(value=0.1), Quantity(value=0.05)]
    rows = bench_ddp.ways_table(timings).rows
    assert [one.get("step, ratio") for one in rows] == [Quantity(value=1.0), Quantity(value=0.5), None]
    assert [one.get("memory, ratio") for one in rows] == [Quantity(value=1.0), Quantity(value=0.6), None]


def test_a_full_run_of_ddp_is_as_long_as_it_was() -> None:
    """The numbers of starts and turns decide how steady the figures are."""
    chosen = settings(bench_ddp.BENCHMARK.options, {}, quick=False)
    assert (chosen[bench_ddp.STARTS], chosen[bench_ddp.PAIR_STARTS_OPTION], chosen[bench_ddp.MANY]) == (6, 12, 8)
    assert (chosen[bench_ddp.WORKERS], chosen[bench_ddp.MODELS_OPTION]) == ((2, 4), bench_ddp.MODELS)


def test_a_full_run_of_ddp_starts_every_kind_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick form leaves out pairs and memory: what a full run makes of them is looked at here."""
    plans: list[tuple[int, dict[str, Any]]] = []

    def measured(_: str, workers: int, plan: dict[str, Any]) -> dict[str, Any]:
        plans.append((workers, plan))
        if plan.get("memory"):
            return {"memory": 100.0 if plan["ways"] == [OURS] else 250.0}
        return {"seconds": {way: [0.02 if way == OURS else 0.04] * 2 * plan["turns"] for way in plan["ways"]}}

    monkeypatch.setattr(bench_ddp, "run_ranks", measured)
    given: dict[str, Any] = {"models": ("mlp",), "starts": 2, "pair-starts": 3, "repeats": 4}
    made = bench_ddp.run(settings(bench_ddp.BENCHMARK.options, given, quick=False), lambda _: None)
    timed = [(workers, plan["ways"]) for workers, plan in plans if not plan.get("memory")]
    assert timed.count((2, list(bench_ddp.PAIRS["exact"]))) == timed.count((2, list(bench_ddp.PAIRS["drop-in"]))) == 3
    assert timed.count((2, [TREE])) == timed.count((8, [TREE])) == 2
    assert timed.count((2, [*bench_ddp.WAYS, *bench_ddp.MORE])) == 2
    assert timed.count((4, list(bench_ddp.WAYS))) == 1
    weighed = [plan["ways"] for _, plan in plans if plan.get("memory")]
    assert weighed == [[way] for way in bench_ddp.WEIGHED]
    judged = ratios(list(made.figures))
    assert judged["mlp: memory of strategy ddp / torch DDP on gloo"] == (0.4, 0.6, True)
    assert judged["mlp: strategy ddp / torch DDP on gloo"] == (0.5, 0.55, True)
    assert len(judged) == 6


@pytest.mark.parametrize(
    ("given", "words"),
    [({"many": 3}, "--many 3: expected a divisor of 8"), ({"many": 2}, "--many 2: expected more than the 2 workers")],
)
def test_ddp_refuses_workers_that_cannot_share_the_lanes(given: dict[str, int], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        bench_ddp.check(settings(bench_ddp.BENCHMARK.options, given, quick=False))


def step(who: str, backend: str, seconds: float, size: int) -> bench_syncbn.Step:
    measured = Quantity(value=seconds)
    return bench_syncbn.Step(who=who, backend=backend, seconds=measured, bytes=size, collectives=2, sent=8)


def test_syncbn_counts_the_worst_shape() -> None:
    shapes = [
        bench_syncbn.Shape(
            name=name,
            runs=40,
            steps=(
                step("local", "cpu", 1.0, 100),
                step("by hand", "gloo", 10.0, 10 * activation),
                step("ours", "gloo", 10 * gloo, 2 * activation),
                step("ours", "shm", shm, 2 * activation + spare),
            ),
        )
        for name, activation, gloo, shm, spare in (("32x128", 16384, 0.5, 1.0, 0), ("64x1024", 262144, 0.75, 2.0, 1024))
    ]
    figures = bench_syncbn.figures(shapes)
    assert ratios(figures) == {
        "time, ours on shm / by hand on gloo": (0.2, 0.25, True),
        "time, ours / by hand, both on gloo": (0.75, 0.7, False),
        "time at 64 x 1024, ours on shm / local": (2.0, 2.5, True),
        "bytes, ours / by hand": (0.2, 0.45, True),
        "(bytes of ours - two activations) / 2 KiB": (0.5, 1.0, True),
    }
    assert figures[0].ratio.ends == (0.1, 0.2)
    assert figures[0].ours.measured.value == 2.0
    assert bench_syncbn.times_table(shapes).rows[0]["input"] == "32 x 128"
    assert bench_syncbn.needs_table(shapes).rows[1]["ours"] == Quantity(value=2 * 262144 + 1024)


def test_measuring_costs_what_pairs_differ_by() -> None:
    cost = pair_cost([1.0, 1.02, 1.1], [1.0, 1.0, 1.0])
    assert (cost.value, cost.low, cost.high) == pytest.approx((0.02, 0.0, 0.1))
    assert pair_cost([3.0], [2.0]).ends == (0.5, 0.5)


def test_data_takes_the_median_of_pairs_with_their_middle_half() -> None:
    paired = _paired("ours / theirs", ("ours", [1, 2, 3, 4, 50]), ("theirs", [1, 1, 1, 1, 10]), 3.0)
    assert (paired.ratio.value, paired.ratio.ends, paired.reached) == (3, (2, 4), True)


def test_a_side_that_a_limit_stops_is_a_row_that_says_so() -> None:
    whole = HeldData(10, "Ragged", start=[1.0], forked=[0.5], handed=[0.1], epoch={0: [0.1], 2: [0.2]}, descriptors=12)
    whole.by_hand, whole.lightning = 3.25, "not installed"
    stopped, other = table([HeldData(10, LIST, why_not="Too many open files (limit 200)"), whole]).rows
    assert stopped == {"items": 10, "held as": LIST, "start, spawn": "Too many open files (limit 200)"}
    assert (other["trained by hand"], other["in Lightning"]) == (Quantity(value=3.25), "not installed")


def test_data_refuses_fewer_items_than_ranks_can_share() -> None:
    with pytest.raises(BadInput, match="--items 10: expected at least 400 for 4 ranks"):
        DATA.check(settings(DATA.options, {"items": (10, 5000)}, quick=False))
    with pytest.raises(BadInput, match="--started-by forkserver: expected spawn among them"):
        DATA.check(settings(DATA.options, {"started-by": ("forkserver",)}, quick=False))


def test_data_without_a_fork_server_leaves_its_cell_empty() -> None:
    (row,) = table([HeldData(10, LIST, start=[1.0], handed=[0.1], epoch={0: [0.1]}, descriptors=12)]).rows
    assert "start, server" not in row
    assert row["start, spawn"] == median([1.0])
