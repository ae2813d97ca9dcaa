"""A comparison made up for tests: every chart has numbers, one way failed, one text is hostile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lockstep.report.collect import FinishedRun
from lockstep.report.compare import Comparison, curve, with_speed_up
from lockstep.report.rows import RankRow, Row
from lockstep.strategies.clock import PARTS, Part
from lockstep.train.schema.rank_jsonl import EvaluationLine, StepLine
from tests.unit.report.values import BEGAN, rank_result, result_of, setup

HOSTILE = "<script>alert(1)</script>"
BASE = {"data": 0.8, "forward": 9.0, "backward": 17.0, "exchange": 0.0, "optimizer": 2.2, "wait": 0.0}
WAYS: dict[str, dict[str, Any]] = {
    "single": {"workers": 1, "parts": {k: v * 2 for k, v in BASE.items()}},
    "dp": {"workers": 2, "processes": 1, "parts": BASE | {"forward": 11.0, "exchange": 3.4, "wait": 4.0}},
    "ddp": {"workers": 2, "parts": BASE | {"exchange": 2.1, "optimizer": 1.3, "wait": 0.9}},
    "torch-ddp": {"workers": 2, "parts": BASE | {"exchange": 12.5, "wait": 1.2}, "hidden": 0.35},
    "ddp, 4 workers": {"workers": 4, "parts": {k: v * 0.6 for k, v in BASE.items()} | {"exchange": 2.6, "wait": 2.2}},
}
STEPS = 40


def run(name: str, parts: dict[str, float], processes: int, repeat: int = 1) -> FinishedRun:
    """Return a run whose ranks recorded two steps in full."""
    seconds = {part: parts[part] / 1e3 for part in PARTS}
    shift = 0.03 if name.startswith("torch") else 0.0
    ranks = tuple(tuple(_step(step, rank, seconds, shift) for step in range(STEPS)) for rank in range(processes))
    results = [rank_result(rank, parts=seconds) for rank in range(processes)]
    return FinishedRun(
        folder=Path(f"runs/{name}-{repeat}"),
        setup=setup(name.partition(",")[0], processes, plan={"steps": STEPS}),
        result=result_of(results, STEPS, metrics={"accuracy": 0.93}),
        losses=tuple(line.loss for line in ranks[0]),
        evaluations=tuple(
            EvaluationLine(steps=steps, metrics={"accuracy": 0.93 - 1 / steps + shift}, seconds=0.1)
            for steps in (STEPS // 2, STEPS)
        ),
        steps=ranks,
        hosts=("host-a",) * processes,
    )


def _step(step: int, rank: int, seconds: dict[Part, float], shift: float) -> StepLine:
    whole = sum(seconds.values())
    spans, start = [], 0.0
    for part in PARTS:
        spans.append((part, start, seconds[part]))
        start += seconds[part]
    return StepLine(
        step=step,
        epoch=0,
        loss=4.6 * math.exp(-step / 22) + 0.5 + 0.12 * math.sin(step * 1.7) + shift * step / STEPS,
        weight=16.0,
        total=whole,
        began=BEGAN + step * whole + rank * 2e-4,
        seconds=seconds,
        memory=3 * 2**27,
        spans=tuple(spans) if step in (20, 21, 22) else None,
    )


def row(name: str, *, workers: int, parts: dict[str, float], processes: int, hidden: float | None = None) -> Row:
    """Return a finished row."""
    seconds = {part: parts[part] / 1e3 for part in PARTS}
    step = sum(seconds.values())
    memory = tuple((310 + 24 * rank + 90 * (name == "single")) * 2**20 for rank in range(processes))
    same = not name.startswith("torch")
    return Row(
        name=name,
        strategy=name.partition(",")[0],
        workers=workers,
        threads=1,
        global_batch=256,
        batch_per_worker=256 / workers,
        backend="shm",
        repeats=3,
        seconds=step * STEPS,
        seconds_spread=(step * STEPS * 0.96, step * STEPS * 1.09),
        step_seconds=step,
        step_spread=(step * 0.97, step * 1.05),
        samples_per_second=256 / step,
        start_seconds=1.31,
        peak_memory=memory,
        memory_measure="peak RSS",
        loss=1.2345 if same else 1.2501,
        metrics={"accuracy": 0.934},
        digest=("ab" if same else "cd") * 32,
        parity="same bits as single" if same else "differs from step 1 on, by at most 3e-07: other order of summation",
        parts=seconds,
        ranks=tuple(
            RankRow(rank=rank, host="host-a", step_seconds=step, parts=seconds, sent=26e6, peak_memory=size, loss=1.2)
            for rank, size in enumerate(memory)
        ),
        overlap=hidden,
        slowest_rank=1 if processes > 1 else None,
        why=f"{name} spends {seconds['backward'] / step:.0%} of the step in backward.",
    )


def example(recipe: str = "cifar100") -> Comparison:
    """Return the comparison."""
    rows, runs = [], {}
    for name, way in WAYS.items():
        processes = way.get("processes", way["workers"])
        rows.append(
            row(name, workers=way["workers"], parts=way["parts"], processes=processes, hidden=way.get("hidden"))
        )
        runs[name] = [run(name, way["parts"], processes, repeat) for repeat in (1, 2, 3)]
    filled = with_speed_up(rows)
    why_not = f"rank 1 on host-a failed at step 3: ValueError: {HOSTILE}"
    failed = Row(name="torch-fsdp", strategy="torch-fsdp", workers=2, threads=1, why_not=why_not)
    return Comparison(
        title=f"{recipe}: 4 lanes, 3 repeats each",
        rows=(*filled, failed),
        recommendation=(
            "Use ddp on 2 workers: 1.88 times as fast as single.",
            "Leanest: ddp, 334 MiB in its largest rank.",
            "torch-ddp spends 35% of the step exchanging 26 MB over gloo; backend shm takes 0.61 of the time.",
        ),
        settings={
            "recipe": recipe,
            "global_batch": 256,
            "lanes": 4,
            "seed": 0,
            "steps": STEPS,
            "repeats": 3,
            "launcher": "spawn",
            "threads": 1,
            "command": f"lockstep compare {recipe} --workers 2,4 --steps {STEPS}",
        },
        versions={"lockstep": "0.1.0", "torch": "2.13.0", "python": "3.11.9", "system": "Linux 6.1"},
        hosts=("host-a",),
        curve=curve(filled),
        runs=runs,
    )
