"""The files of a finished run against each other: what each of them allows alone may still not go together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.train.records import AGAIN
from lockstep.train.schema.rank_jsonl import PATTERN, EndLine, RankLine, header_of, rank_path, steps_of
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.result_json import Done
from lockstep.train.schema.run_json import NAME as SETUP
from lockstep.train.schema.run_json import Setup


def rank_files(folder: Path, count: int | None) -> list[Path]:
    """Return the ranks' records: all of a finished run's, and whatever there is of another (`count` is None)."""
    there = {path.name for path in folder.glob(PATTERN)}
    paths = [rank_path(folder, rank) for rank in range(len(there) if count is None else count)]
    missing = [path for path in paths if path.name not in there]
    if count is not None and missing:
        raise BadInput(f"{missing[0]} does not exist, and {folder / RESULT} tells of {count} ranks. {AGAIN}")
    return [path for path in paths if path.name in there]


def check_finished(folder: Path, setup: Setup, result: Done, ranks: Sequence[tuple[Path, list[RankLine]]]) -> None:
    """Refuse a finished run whose files do not agree: ranks, steps, digest."""
    numbers = [rank.rank for rank in result.ranks]
    if numbers != list(range(len(numbers))) or len(result.peak_memory) != len(numbers):
        told = f"ranks {', '.join(map(str, numbers))} and peak_memory of {len(result.peak_memory)} ranks"
        raise _changed(folder / RESULT, f"has {told}, and all ranks from 0 up were expected in both")
    if tuple(rank.peak_reserved for rank in result.ranks) != (result.peak_reserved or (None,) * len(numbers)):
        raise _changed(folder / RESULT, "has other figures in peak_reserved than its ranks have")
    early = bool(result.stopped) and result.steps < setup.plan.steps
    if result.steps != setup.plan.steps and not early:
        raise _changed(folder / RESULT, f"tells of {result.steps} steps, and {SETUP} of {setup.plan.steps}")
    first = min((line.step for _, lines in ranks for line in steps_of(lines)), default=0)
    for rank, (path, lines) in enumerate(ranks):
        _check_rank(path, rank, lines, result, first)
    if result.warmup_steps >= result.steps - first:
        raise _changed(folder / RESULT, f"has {result.warmup_steps} warmup_steps of {result.steps - first} steps")


def _check_rank(path: Path, rank: int, lines: Sequence[RankLine], result: Done, first: int) -> None:
    """Check one rank: a header of its own, every step from the first of the run on, an end with the same digest."""
    header, steps = header_of(lines), [line.step for line in steps_of(lines)]
    if header is None or header.rank != rank:
        raise _changed(path, f"does not begin with the header of rank {rank}")
    end = lines[-1]
    in_order = all(step == first + place for place, step in enumerate(steps))
    if not isinstance(end, EndLine) or not in_order or first + len(steps) != result.steps:
        no_end = "" if isinstance(end, EndLine) else " and no end line"
        raise BadInput(
            f"{path} has {len(set(steps))} of {result.steps - first} steps{no_end}: lines were lost after the run. "
            f"{AGAIN}"
        )
    for line in steps_of(lines):
        if line.span_lanes is not None and len(line.span_lanes) != len(line.spans or ()):
            told = f"{len(line.span_lanes)} span_lanes for {len(line.spans or ())} spans"
            raise _changed(path, f"has {told} in step {line.step}, and one for each was expected")
    if end.digest != result.digest:
        raise _changed(path, f"ends with digest {end.digest[:12]}, and {RESULT} says {result.digest[:12]}")


def _changed(path: Path, what: str) -> BadInput:
    return BadInput(f"{path} {what}: a file was changed after the run. {AGAIN}")
