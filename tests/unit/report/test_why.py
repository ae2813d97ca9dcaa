"""The sentence that says why, against made-up runs whose cause is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from lockstep.report.collect import FinishedRun
from lockstep.report.compare import Comparison
from tests.unit.report.causes import compared, parts, run
from tests.unit.report.made_up_stages import EQUAL, stage_run

SINGLE = run("single", ranks=[parts(forward=60, backward=120, exchange=0, wait=0)])
FAST = run("ddp", 2, ranks=[parts(exchange=3)] * 2, sent=26_000_000, backend="shm")


def sentence(found: Comparison, name: str) -> str:
    return next(row.why for row in found.rows if row.name == name)


def test_exchange_bound_names_bytes_backend_and_what_was_measured() -> None:
    slow = run("torch-ddp", 2, ranks=[parts(exchange=60)] * 2, sent=26_000_000, backend="gloo")
    found = sentence(compared(SINGLE, FAST, slow), "torch-ddp")
    assert found == (
        "spends 38% of the step exchanging 26 MB over gloo; on one host use ddp, which exchanges in shared memory: "
        "measured 0.64 of the time"
    )


def test_nothing_is_claimed_that_was_not_measured() -> None:
    slow = run("torch-ddp", 2, ranks=[parts(exchange=60)] * 2, sent=26_000_000, backend="gloo")
    found = sentence(compared(slow), "torch-ddp")
    assert "use ddp" in found
    assert "measured" not in found
    no_faster = run("ddp", 2, ranks=[parts(exchange=59)] * 2, sent=26_000_000, backend="shm")
    assert "measured" not in sentence(compared(slow, no_faster), "torch-ddp")


def test_hidden_exchange_is_told() -> None:
    slow = run("torch-ddp", 2, ranks=[parts(exchange=60)] * 2, sent=26_000_000, backend="gloo", hidden=0.02)
    found = compared(slow)
    assert found.rows[0].overlap == pytest.approx(0.25)
    assert "25% of it hidden behind backward" in found.rows[0].why


def test_exchange_of_our_own_is_not_blamed_on_another_backend() -> None:
    slow = run("ddp", 2, ranks=[parts(exchange=60)] * 2, sent=26_000_000, backend="shm")
    assert sentence(compared(slow), "ddp").endswith("a larger --global-batch exchanges less often")


def test_data_bound() -> None:
    found = sentence(compared(SINGLE, run("ddp", 2, ranks=[parts(data=70)] * 2)), "ddp")
    assert found.startswith("waits 41% of the step for data; read ahead")


TINY = {"data": 0.3, "forward": 0.3, "backward": 0.4, "exchange": 0.0, "optimizer": 0.2, "wait": 0.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "computes for 58% of the step"),
        ({"data": 0.9}, "fetching a batch takes 900 µs, 50% of a step that is very short; use a larger --global-batch"),
        ({"data": 0.9, "optimizer": 1.0}, "spends 38% of the step in the optimizer"),
        ({"exchange": 0.3, "wait": 0.3}, "a step of 1.8 ms is too small to share"),
        ({"data": 0.9, "exchange": 1.0}, "a step of 2.8 ms is too small to share"),
        ({"data": 3.0}, "waits 77% of the step for data"),
        ({"data": 30, "forward": 50, "backward": 30}, "waits 27% of the step for data"),
        ({"data": 30, "forward": 30, "exchange": 40, "wait": 5}, "spends 38% of the step exchanging"),
        ({"data": 10, "forward": 40, "backward": 40}, "computes for 89% of the step"),
    ],
)
def test_data_is_blamed_only_where_hiding_it_would_pay(changes: dict[str, float], words: str) -> None:
    """The parts of a step in milliseconds; tiny ones but for the changes."""
    found = compared(run("torch-ddp", 2, ranks=[parts(**(TINY | changes))] * 2, sent=100_000))
    assert words in found.rows[0].why


def test_a_straggler_is_named_with_its_host_and_part() -> None:
    late = [parts(wait=60), parts(forward=90, wait=0), parts(wait=60)]
    found = compared(SINGLE, run("ddp", 3, ranks=late, cpus=4))
    assert found.rows[1].slowest_rank == 1
    assert found.rows[1].why == (
        "the ranks wait 25% of the step for rank 1 on host-a, whose forward takes 90.0 ms, 3.0 times the others'; "
        "look for other load or a slower core there"
    )
    late = [parts(data=60, wait=0), parts(wait=60)]
    assert "whose data takes 60.0 ms" in sentence(compared(run("ddp", 2, ranks=late)), "ddp")


def test_no_straggler_among_equals() -> None:
    found = compared(SINGLE, FAST)
    assert found.rows[1].slowest_rank is None


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (
            "torch-ddp",
            "spends 51% of the step in the optimizer, on every worker the whole of it; ddp divides that work",
        ),
        ("ddp", "divided over the workers already; use a fused one"),
    ],
)
def test_optimizer_bound(strategy: str, words: str) -> None:
    found = sentence(compared(SINGLE, run(strategy, 2, ranks=[parts(optimizer=100)] * 2)), strategy)
    assert words in found


def test_compute_bound_scales_as_it_should() -> None:
    found = compared(SINGLE, FAST)
    assert "computes for 89% of the step and scales as it should (efficiency 92%)" in sentence(found, "ddp")
    assert sentence(found, "single") == (
        "computes for 97% of the step on one worker; on 2 workers ddp took 0.54 of the time"
    )
    assert sentence(compared(SINGLE), "single").endswith("on one worker; no way with more workers ran")


def test_no_way_with_more_workers_is_faster() -> None:
    slow = run("ddp", 2, ranks=[parts(forward=300, backward=600)] * 2)
    assert "no way with more workers is clearly faster" in sentence(compared(SINGLE, slow), "single")


def test_compute_that_does_not_shrink_is_told() -> None:
    slow = run("ddp", 2, ranks=[parts(forward=55, backward=110)] * 2)
    assert "the workers slow each other down" in sentence(compared(SINGLE, slow), "ddp")


def test_a_step_too_small_to_share() -> None:
    alone = run("single", ranks=[parts(data=0, forward=0.5, backward=1, exchange=0, optimizer=0.1, wait=0)])
    small = parts(data=0, forward=0.25, backward=0.5, exchange=1, optimizer=0.1, wait=0.2)
    found = sentence(compared(alone, run("torch-ddp", 2, ranks=[small] * 2, sent=20_000)), "torch-ddp")
    assert found == (
        "a step of 2.1 ms is too small to share: 59% of it goes into meeting the other workers; use a larger "
        "--global-batch, or fewer workers (single: measured 0.78 of the time)"
    )


def test_more_threads_than_cores() -> None:
    found = sentence(compared(SINGLE, run("ddp", 4, ranks=[parts(exchange=60)] * 4)), "ddp")
    assert found == "4 workers of 1 thread share 2 cores and take turns; use at most 2 workers here"


def test_threads_of_one_process_take_turns() -> None:
    turns = run("dp", 2, ranks=[parts(forward=55, backward=110)])
    found = sentence(compared(SINGLE, turns, FAST), "dp")
    assert found == (
        "the 2 threads of one process take turns at the interpreter's lock: forward and backward take 1.8 times a fair "
        "share of single's; use processes (ddp): measured 0.58 of the time"
    )


def test_the_lock_is_not_blamed_where_processes_are_as_slow() -> None:
    slow = [parts(forward=55, backward=110)]
    found = compared(SINGLE, run("dp", 2, ranks=slow), run("ddp", 2, ranks=slow * 2))
    assert "lock" not in sentence(found, "dp")
    assert "the workers slow each other down" in sentence(found, "dp")


def test_parts_that_do_not_add_up_are_told() -> None:
    made = run("ddp", 2)
    steps = tuple(tuple(structs.replace(line, total=line.total * 1.25) for line in rank) for rank in made.steps)
    found = compared(replace(made, steps=steps))
    assert found.rows[0].unaccounted == pytest.approx(0.2)
    assert found.rows[0].notes == ("the parts leave 20% of the step unaccounted for",)
    assert compared(made).rows[0].notes == ()


def test_without_parts_there_is_no_reason() -> None:
    made = run("ddp", 2, ranks=[{}, {}])
    found = compared(made)
    assert found.rows[0].why == ""
    assert found.rows[0].notes == ("steps were not divided into parts",)


def staged(strategy: str, lanes: int, *seconds: float) -> FinishedRun:
    made = run(
        strategy, len(seconds), lanes=lanes, cpus=8, ranks=[parts(forward=one, backward=2 * one) for one in seconds]
    )
    ranks = tuple(structs.replace(rank, stage=stage) for stage, rank in enumerate(made.result.ranks))
    return replace(made, result=structs.replace(made.result, ranks=ranks))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (staged("pipeline", 4, 60, 60, 60, 60), "4 lanes on 4 stages: bubble 43%, with 16 lanes 16%: --lanes 16"),
        (staged("pipeline", 16, 60, 60, 120, 60), "stage 2 computes 2.0 times as long as the others"),
        (staged("layers", 16, 60, 60), "one of 2 stages computes at a time; pipeline streams the lanes"),
    ],
)
def test_a_model_that_is_cut(made: FinishedRun, words: str) -> None:
    assert sentence(compared(made), made.setup.spec.strategy).startswith(words)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            stage_run(seconds=EQUAL * 2, lanes=4),
            "4 lanes on 4 stages: bubble 43% (measured 43%), with 16 lanes 16%: --lanes 16, if a lane stays large ",
        ),
        (
            stage_run(seconds=((10e-3, 20e-3), (30e-3, 60e-3)), lanes=32),
            "stage 1 computes 3.0 times as long as the others, which wait for it (bubble 34%; of equal stages 3%): cut",
        ),
        (
            stage_run(lanes=32, passing=2e-3, on_its_way=8e-3),
            "computes 73% of the time, passes activations and gradients on for 5% and waits 19% more",
        ),
        (
            stage_run("layers", lanes=8),
            "one of 2 stages computes at a time, and a worker waits 50% of the time; pipeline streams the lanes",
        ),
    ],
    ids=["few lanes", "imbalance", "transfer", "layers"],
)
def test_a_model_that_is_cut_with_measured_numbers(made: FinishedRun, words: str) -> None:
    assert sentence(compared(made), made.setup.spec.strategy).startswith(words)


def test_the_largest_source_of_a_bubble_speaks() -> None:
    """Both are true: there are few lanes, and one stage computes longer. What costs more is told."""
    few = stage_run(seconds=((10e-3, 20e-3), (13e-3, 26e-3)), lanes=2)
    assert sentence(compared(few), "pipeline").startswith("2 lanes on 2 stages: bubble 33%")
    assert sentence(compared(few), "pipeline").endswith("; --pipeline-schedule zero-bubble has 14%")
    longer = stage_run(seconds=((10e-3, 20e-3), (50e-3, 90e-3)), lanes=4)
    assert sentence(compared(longer), "pipeline").startswith("stage 1 computes")


def test_no_single_source_of_a_bubble_is_large() -> None:
    mixed = stage_run(seconds=((10e-3, 20e-3), (12e-3, 24e-3)), lanes=8)
    assert sentence(compared(mixed), "pipeline") == (
        "a worker waits 17% of the time: 11% for the first and the last lanes, 6% since stages take unequally long, 0% "
        "for what is on its way; try more --lanes, or another --cut"
    )


def test_a_stage_that_takes_longer_is_no_slow_core() -> None:
    """Its ranks compute different layers; a rank of `ddp` that takes as much longer is looked into."""
    told = sentence(compared(staged("pipeline", 16, 60, 70)), "pipeline")
    assert "slower core" not in told


def test_lanes_are_not_advised_beyond_the_global_batch() -> None:
    told = sentence(compared(stage_run(lanes=16, seconds=EQUAL * 8)), "pipeline")
    assert "with 64 lanes 19%: --lanes 64" in told, "a global batch of 64 has room for no more"
    full = sentence(compared(stage_run(lanes=64, seconds=EQUAL * 10)), "pipeline")
    assert "a global batch of 64 has no room for twice the lanes: make it larger; " in full


def test_advice_does_not_contradict_the_row_beside_it() -> None:
    """Fewer workers with more threads are advised only where this comparison has not measured them as slower."""
    slow = run("ddp", 2, ranks=[parts(forward=55, backward=110)] * 2)
    threaded = run("single", threads=2, ranks=[parts(forward=300, backward=600)])
    assert sentence(compared(SINGLE, slow), "ddp").endswith("try fewer workers with more threads")
    told = sentence(compared(SINGLE, slow, threaded), "ddp")
    assert "try fewer workers" not in told
    assert "no way out here" in told
    nearly = run("single", threads=2, ranks=[parts(forward=54, backward=109)])
    told = sentence(compared(SINGLE, slow, nearly), "ddp")
    assert told.endswith("may be faster (single: measured 0.99 of the time, but the spreads overlap)")


def test_fewer_workers_are_not_advised_where_they_were_slower() -> None:
    alone = run("single", ranks=[parts(data=0, forward=5, backward=10, exchange=0, optimizer=0.1, wait=0)])
    small = parts(data=0, forward=0.25, backward=0.5, exchange=1, optimizer=0.1, wait=0.2)
    told = sentence(compared(alone, run("torch-ddp", 2, ranks=[small] * 2, sent=20_000)), "torch-ddp")
    assert told.endswith("use a larger --global-batch")
