"""Run folders made up for tests, as the training loop would have written them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lockstep.strategies.clock import PARTS, Part
from lockstep.train.records import Records, write_document
from lockstep.train.schema.rank_jsonl import EndLine, StepLine, UsageLine
from tests.unit.report.values import BEGAN, digest, header, rank_result, result_of, setup

SECONDS: dict[Part, float] = {
    "data": 0.001,
    "forward": 0.010,
    "backward": 0.020,
    "exchange": 0.006,
    "optimizer": 0.002,
    "wait": 0.001,
}
STEPS = 6


def make_run(folder: Path, *, slower: float = 1.0, state: str = "a", **what: Any) -> Path:
    """Write the folder of a run that is done."""
    asked = setup(**what)
    workers, threads = asked.spec.workers, asked.spec.threads or 1
    folder.mkdir(parents=True)
    write_document(folder / "run.json", asked)
    parts = {name: seconds * slower for name, seconds in SECONDS.items()}
    whole = sum(parts.values())
    for rank in range(workers):
        records = Records(folder, rank)
        records.write(header(rank, workers, asked.host))
        for step in range(STEPS):
            records.write(_step(step, rank, parts, whole))
            records.write(UsageLine(time=BEGAN + (step + 1) * whole, cpus=0.5 + 0.1 * step, memory=2**28))
        records.write(EndLine(seconds=STEPS * whole, peak_memory=3 * 2**27 + rank, digest=digest(state)))
        records.close()
    figures = {"host": asked.host, "hidden": 0.002, "sent": 4_000_000}
    ranks = [rank_result(rank, parts, peak_memory=3 * 2**27 + rank, **figures) for rank in range(workers)]
    write_document(folder / "result.json", result_of(ranks, STEPS, digest=digest(state), threads=threads))
    return folder


def _step(step: int, rank: int, parts: dict[Part, float], whole: float) -> StepLine:
    spans, start = [], 0.0
    for part in PARTS:
        spans.append((part, start, parts[part]))
        start += parts[part]
    return StepLine(
        step=step,
        epoch=0,
        loss=3.0 - 0.2 * step + 0.01 * rank,
        weight=16.0,
        total=whole,
        began=BEGAN + step * whole,
        seconds=parts,
        hidden=0.002,
        sent=4_000_000,
        memory=3 * 2**27,
        spans=tuple(spans) if step in (2, 3) else None,
    )


def change(path: Path, **fields: Any) -> None:
    """Tamper with a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
