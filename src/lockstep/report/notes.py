"""Notes: what a reader should know before trusting a row. Nothing is dropped for it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from lockstep.report.collect import FinishedRun
from lockstep.report.parity import unsteady
from lockstep.report.rows import Row
from lockstep.report.units import size
from lockstep.report.wording import written
from lockstep.train.checkpoint_header import BITS_DEPEND_ON
from lockstep.train.out_of_memory import ADVICE, says_out_of_memory
from lockstep.train.same_bits import promises_bits
from lockstep.train.schema.result_json import NAME as RESULT

OUTLIER = 1.5
"""A repeat that took so many times the median of the others is marked."""
ACCOUNTED = 0.05
"""The share of a step that may go unexplained."""
COMPUTES, CROWDED, LOOKS = 0.8, 0.7, 3
"""Ranks of one thread that compute for such a share of a step, and got less of a CPU in so many looks, were crowded."""
ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ (?:bytes|[KMGT]iB))")
LEANER = "lockstep fit shows what fits; try more --lanes (less at a time), a smaller --global-batch, or a smaller model"
STEADIER = "seed the recipe's own random numbers, and leave out what depends on time or threads"


def notes(row: Row, runs: Sequence[FinishedRun], first: FinishedRun | None, why_not: str = "") -> tuple[str, ...]:
    """Return the notes of a row; `why_not` is why it has fewer repeats than asked for, if it has."""
    if not runs or first is None:
        return ()
    lines = [f"stopped after {len(runs)} of its repeats: {why_not}"] if why_not else []
    if not row.finite:
        lines.append("the loss or a metric is not a finite number: its figures say nothing about training")
    if any(run.setup.resumed for run in runs):
        lines.append("it was interrupted and resumed: its time and throughput are those of the last attempt")
    lines += slow_repeats(runs)
    lines += _crowded(row, runs)
    if told := unsteady(runs):
        lines.append(f"{told}: {STEADIER if promises_bits(row.strategy) else f'{row.strategy} promises no more'}")
    if row.unaccounted is not None and abs(row.unaccounted) > ACCOUNTED:
        lines.append(f"the parts leave {row.unaccounted:.0%} of the step unaccounted for")
    if row.step_seconds and not row.parts:
        lines.append("steps were not divided into parts")
    if runs[0].result.shards:
        lines.append(f"weights: {runs[0].result.shards}")
    lines += _elsewhere(runs[0], first)
    return tuple(lines)


def slow_repeats(runs: Sequence[FinishedRun]) -> list[str]:
    """Name the repeats that were much slower than the others; they are kept. Of two, neither is the usual one."""
    steps = [run.result.step_seconds for run in runs]
    if len(steps) == 2 and max(steps) > OUTLIER * min(steps):
        times = max(steps) / min(steps)
        return [f"one of its two repeats took {times:.1f} times as long as the other: more would tell which is usual"]
    lines = []
    for place, seconds in enumerate(steps):
        others = steps[:place] + steps[place + 1 :]
        if others and seconds > OUTLIER * statistics.median(others):
            times = seconds / statistics.median(others)
            lines.append(f"repeat {place + 1} took {times:.1f} times the others' time: kept, see the spread")
    return lines


def _crowded(row: Row, runs: Sequence[FinishedRun]) -> list[str]:
    """Say if ranks that compute nearly all the time did not get the CPU that each of them needs."""
    whole = sum(row.parts.values())
    computes = (row.parts["forward"] + row.parts["backward"]) / whole if whole else 0.0
    looks = [line.cpus for run in runs for lines in run.usage for line in lines]
    alone = row.threads == 1 and all(len(run.usage) == row.workers and run.result.device == "cpu" for run in runs)
    if not alone or computes < COMPUTES or len(looks) < LOOKS or (share := statistics.median(looks)) >= CROWDED:
        return []
    return [
        f"it computes for {computes:.0%} of a step and got {share:.2f} of a CPU per rank: other programs ran beside it"
    ]


def reason(text: str, folder: Path | None = None) -> str:
    """Put how a run failed into one line: where, and what was raised last; `folder` is where all of it stands."""
    told = [line.strip() for line in text.strip().splitlines() if line.strip()] or ["no reason was given"]
    lines = [line for line in told if line != ADVICE]
    first, last = lines[0].removesuffix(":"), lines[-1]
    more = f" (traceback in {written(Path(folder.name))}/{RESULT})" if folder and "Traceback" in text else ""
    if says_out_of_memory(text):
        asked = ASKED.search(last)
        what = f"asking for {_amount(asked[1])}" if asked else last
        return f"does not fit into memory: {first}{f', {what}' if len(lines) > 1 else ''}; {LEANER}{more}"
    return f"{first}: {last}{more}" if len(lines) > 1 else lines[0]


def _amount(text: str) -> str:
    number, _, unit = text.partition(" ")
    return size(float(number)) if unit == "bytes" else text


def _elsewhere(run: FinishedRun, first: FinishedRun) -> list[str]:
    """Say if a row was made by other versions, or on another host, than the first row."""
    lines = []
    mine, theirs = run.setup.versions, first.setup.versions
    other = [
        f"{name} {mine.get(name)} ({theirs.get(name)})" for name in BITS_DEPEND_ON if mine.get(name) != theirs.get(name)
    ]
    if other:
        lines.append(f"made with other versions than the first row: {', '.join(other)}")
    if _place(run) != _place(first):
        lines.append(f"started on {_place(run)}, the first row on {_place(first)}")
    return lines


def _place(run: FinishedRun) -> str:
    return f"{run.setup.host}{f' ({run.setup.cpu})' if run.setup.cpu else ''}"
