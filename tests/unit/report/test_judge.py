"""Rows, notes and the recommendation, from made-up runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lockstep.report.compare import heading, judge
from lockstep.report.files import json_text
from lockstep.report.notes import LEANER, STEADIER, reason
from lockstep.report.rows import summarise
from lockstep.train.out_of_memory import ADVICE
from lockstep.train.schema.rank_jsonl import UsageLine
from tests.unit.report.causes import compared, parts, run, way

SINGLE = run("single", ranks=[parts(forward=60, backward=120)])
WIDE = run("single", ranks=[parts(forward=45, backward=90)], threads=2, state="c")
FAST = run("ddp", 2, ranks=[parts()] * 2)


def slower(times: float, **changes: object) -> object:
    return run("ddp", 2, ranks=[{name: value * times for name, value in parts().items()}] * 2, **changes)  # type: ignore[arg-type]


def test_figures_of_a_row() -> None:
    row = summarise("ddp", 2, 1, [slower(1.0), slower(3.0, state="b"), slower(2.0)])  # type: ignore[list-item]
    assert row.step_seconds == pytest.approx(0.2)
    assert row.step_spread == pytest.approx((0.1, 0.3))
    assert row.seconds_spread == pytest.approx((0.5, 1.5))
    assert row.samples_per_second == pytest.approx(320.0)
    assert (row.digest, row.repeats, row.global_batch, row.batch_per_worker) == ("", 3, 64, 32.0)
    assert (row.largest_memory, row.total_memory) == (200 << 20, 400 << 20)
    assert [rank.rank for rank in row.ranks] == [0, 1]
    assert row.parts == pytest.approx({name: value * 2 for name, value in parts().items()})
    assert summarise("ddp", 2, 1, [FAST]).step_spread == pytest.approx((0.098, 0.102))
    assert summarise("x", 1, 1, [], "no GPU").why_not == "no GPU"


def test_warm_up_is_left_out_of_the_throughput() -> None:
    lines = tuple(structs.replace(line, total=0.5 if line.step == 0 else 0.1) for line in FAST.steps[0])
    result = structs.replace(FAST.result, seconds=0.9, samples_per_second=5 * 64 / 0.9)
    made = replace(FAST, steps=(lines, lines), result=result)
    assert summarise("ddp", 2, 1, [made]).samples_per_second == pytest.approx(640.0)


def test_speed_up_efficiency_and_curve() -> None:
    four = run("ddp", 4, ranks=[parts(forward=15, backward=30)] * 4)
    found = judge(
        "t", [way("single", SINGLE), way("single, 2 threads", WIDE), way("ddp, 2", FAST), way("ddp, 4", four)]
    )
    base, wide, two, more = found.rows
    assert (base.speed_up, base.efficiency) == (1.0, 1.0)
    assert two.speed_up == pytest.approx(1.9)
    assert two.speed_up_all_cores == pytest.approx(1.45)
    assert two.efficiency == pytest.approx(0.95)
    assert wide.efficiency == pytest.approx(190 / 145 / 2)
    assert [(point.strategy, point.workers) for point in found.curve] == [("ddp", 1), ("ddp", 2), ("ddp", 4)]
    assert found.curve[2].efficiency == more.efficiency
    assert "differs: other thread count" in wide.parity
    assert (two.parity, base.parity) == ("same bits", "the others are compared with this")


def test_the_winner_and_by_how_much() -> None:
    found = compared(SINGLE, FAST, run("torch-ddp", 2, ranks=[parts(exchange=60)] * 2))
    assert (
        found.recommendation[0]
        == "Fastest: ddp, 100.0 ms per step: 0.63 of the time of torch-ddp, 0.53 of that of single."
    )
    assert found.recommendation[1] == "Leanest: single, 200 MiB over all ranks; ddp takes 2.00 times that."
    assert "One repeat each" in found.recommendation[2]


def test_no_winner_where_spreads_overlap() -> None:
    ways = [way("ddp", slower(1.0), slower(1.2)), way("torch-ddp", run("torch-ddp", 2), run("torch-ddp", 2))]  # type: ignore[arg-type]
    found = judge("t", ways)
    assert found.recommendation[0].startswith(
        "No clear winner: the spreads of torch-ddp (100.0 ms) and ddp (110.0 ms) overlap"
    )


FEW = (4.0, 3.5, 3.0, 2.5)
"""The losses of four steps; one is warm-up."""
CANNOT_TELL = (
    "Which way is the fastest cannot be told: one repeat of fewer than 4 steps after warm-up has no spread{}. "
    "Raise --repeats (3, say), or --steps."
)


def test_one_repeat_of_few_steps_has_no_spread_and_names_no_winner() -> None:
    more_lanes = way("ddp, 4 lanes", run("ddp", 2, losses=FEW, lanes=4))
    found = judge("t", [way("single", run(losses=FEW)), way("ddp", run("ddp", 2, losses=FEW)), more_lanes])
    assert {(row.seconds_spread, row.step_spread) for row in found.rows} == {(None, None)}
    assert found.recommendation[:2] == (CANNOT_TELL.format(""), "Leanest: single, 200 MiB over all ranks.")
    cost = "4 lanes in place of 2 have a cost that so few steps cannot tell"
    assert found.recommendation[2] == f"ddp on 2 workers: {cost}; they hold the bits for up to 4 workers."
    assert len(found.recommendation) == 3


def test_a_row_without_a_spread_is_named_beside_one_that_has_it() -> None:
    found = judge("t", [way("single", SINGLE, SINGLE), way("ddp", run("ddp", 2, losses=FEW))])
    assert found.recommendation[0] == CANNOT_TELL.format(" (ddp)")
    enough = compared(SINGLE, run("ddp", 2, losses=(*FEW, 2.0)))
    assert enough.recommendation[0].startswith("Fastest: ddp")


def test_no_cause_is_made_of_what_cannot_be_told() -> None:
    slow = run("ddp", 2, ranks=[parts(forward=55, backward=110)] * 2, losses=FEW)
    found = compared(SINGLE, WIDE, slow)
    assert (
        "more --repeats or --steps would tell whether fewer workers with more threads are faster" in found.rows[2].why
    )


def test_a_slow_repeat_is_kept_and_marked() -> None:
    found = judge("t", [way("ddp", slower(1.0), slower(1.9), slower(1.0))])  # type: ignore[arg-type]
    assert found.rows[0].repeats == 3
    assert found.rows[0].notes == ("repeat 2 took 1.9 times the others' time: kept, see the spread",)


def test_of_two_repeats_neither_is_the_usual_one() -> None:
    judged = judge("t", [way("ddp", slower(1.0), slower(3.0))])  # type: ignore[arg-type]
    assert judged.rows[0].notes == (
        "one of its two repeats took 3.0 times as long as the other: more would tell which is usual",
    )


def test_a_loss_that_is_no_number_cannot_win() -> None:
    broken = run("ddp", 2, loss=None, finite=False)
    found = compared(SINGLE, broken)
    assert "not a finite number" in found.rows[1].notes[0]
    assert found.recommendation[0] == "Only single ran well: 190.0 ms per step."


def test_what_failed_is_a_row_with_its_reason() -> None:
    stopped = "rank 1 on host-a failed at step 3: ValueError: cursed"
    found = judge(
        "t",
        [way("single", SINGLE), way("ddp", FAST, why_not=stopped), way("dp", why_not="does not fit into memory: x")],
    )
    assert found.rows[1].notes[0] == f"stopped after 1 of its repeats: {stopped}"
    assert found.rows[1].step_seconds
    assert found.rows[2].why_not == "does not fit into memory: x"
    assert "dp did not fit into memory." in found.recommendation
    assert judge("t", [way("dp", why_not="no")]).recommendation == ()


def test_a_recipe_that_is_not_deterministic() -> None:
    found = judge("t", [way("single", SINGLE, run("single", ranks=[parts(forward=60, backward=120)], state="z"))])
    assert found.rows[0].notes == (f"repeats 1 and 2 differ: not deterministic: {STEADIER}",)
    stock = judge("t", [way("torch-ddp", run("torch-ddp", 2), run("torch-ddp", 2, state="z"))])
    assert stock.rows[0].notes == ("repeats 1 and 2 differ: not deterministic: torch-ddp promises no more",)


def test_other_versions_and_hosts_are_noted() -> None:
    found = compared(SINGLE, run("ddp", 2, torch="2.12.0", host="host-b"))
    assert found.rows[1].notes == (
        "made with other versions than the first row: torch 2.12.0 (2.13.0)",
        "started on host-b, the first row on host-a",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "rank 1 on h failed at step 3:\nTraceback\n  File x\nValueError: bad",
            "rank 1 on h failed at step 3: ValueError: bad",
        ),
        ("strategy ddp needs 2 workers", "strategy ddp needs 2 workers"),
        ("rank 0 failed:\nTraceback\nMemoryError", f"does not fit into memory: rank 0 failed, MemoryError; {LEANER}"),
        (
            f"rank 0 failed:\nTraceback\nMemoryError\n{ADVICE}",
            f"does not fit into memory: rank 0 failed, MemoryError; {LEANER}",
        ),
        (
            "rank 0 failed:\nTraceback\nRuntimeError: can't allocate memory: you tried to allocate 3221225472 bytes. x",
            f"does not fit into memory: rank 0 failed, asking for 3.00 GiB; {LEANER}",
        ),
        (
            "rank 1 failed:\nTraceback\nOutOfMemoryError: out of memory. Tried to allocate 20.00 GiB. GPU 0 has",
            f"does not fit into memory: rank 1 failed, asking for 20.00 GiB; {LEANER}",
        ),
        ("", "no reason was given"),
    ],
)
def test_reasons_on_one_line(text: str, line: str) -> None:
    assert reason(text) == line
    more = " (traceback in ddp-1/result.json)" if "Traceback" in text else ""
    assert reason(text, Path("out/ddp-1")) == line + more


def test_plain_values_for_json() -> None:
    import json

    found = json.loads(json_text(compared(SINGLE, FAST).as_json()))
    assert found["rows"][1]["total_memory"] == 400 << 20
    assert found["settings"]["global_batch"] == 64
    assert found["runs"]["ddp"] == ["ddp"]


def test_the_title_says_what_was_asked_for_if_nothing_ran() -> None:
    assert heading("mlp: 4 lanes", [way("dp", why_not="no")]) == "mlp: 4 lanes"


@pytest.mark.parametrize(("cpus", "said"), [((0.5, 0.4, 0.6), True), ((0.99, 0.97, 0.4), False), ((0.1, 0.1), False)])
def test_a_crowded_machine_is_told(cpus: tuple[float, ...], said: bool) -> None:
    lines = tuple(UsageLine(time=float(at), cpus=one, memory=1) for at, one in enumerate(cpus))
    (row,) = compared(replace(SINGLE, usage=(lines,))).rows
    told = "it computes for 95% of a step and got 0.50 of a CPU per rank: other programs ran beside it"
    assert (told in row.notes) is said
