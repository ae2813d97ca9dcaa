"""Reading run folders: whole and believable, or refused with the file and the line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.report import checked
from lockstep.train.records import AGAIN, read_json, read_records
from lockstep.train.resume import attempts

TINY = 1e-6
"""Differences of clocks round to a little less than nothing."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of one rank's time."""

    rank: int
    """Whose."""
    step: int
    """In which step."""
    name: str
    """The part of the step."""
    start: float
    """Seconds since the epoch, by the clock of the rank's host."""
    seconds: float
    """How long."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run folder says."""

    folder: Path
    """Where it was read."""
    order: Mapping[str, Any]
    """run.json."""
    result: Mapping[str, Any]
    """result.json."""
    losses: tuple[float, ...]
    """The global loss of each step, those before a checkpoint included: the ranks' means, weighted."""
    steps: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    """The step lines of each rank, in order."""
    prints: tuple[Mapping[str, Any], ...] = ()
    """Fingerprints of the weights at a few steps, if they were taken."""
    hosts: tuple[str, ...] = ()
    """Where each rank ran."""

    @property
    def done(self) -> bool:
        """Whether it ended well."""
        return bool(self.result.get("outcome") == "done")


def read_run(folder: Path) -> Run:
    """Read one run folder whole, or refuse it and say what is wrong.

    A finished run is checked against itself: every rank's file is there with all steps and an end, and the digest
    that the ranks noted is the one in the result.
    """
    order, result = read_json(folder / "run.json"), read_json(folder / "result.json")
    check_order(folder / "run.json", order)
    done = checked.words(str(folder / "result.json"), result, "outcome") == "done"
    count = check_result(folder / "result.json", result) if done else None
    paths = _rank_files(folder, count)
    ranks = [read_records(path) for path in paths]
    steps = tuple(tuple(_steps(path, lines)) for path, lines in zip(paths, ranks, strict=True))
    if done:
        for path, lines, own in zip(paths, ranks, steps, strict=True):
            _check_whole(path, lines, own, result)
    hosts = tuple(str(lines[0].get("host", "")) if lines else "" for lines in ranks)
    return Run(
        folder=folder,
        order=order,
        result=result,
        losses=tuple(_losses([*_earlier(folder), steps])),
        steps=steps,
        prints=tuple(_prints(folder / "prints.jsonl")),
        hosts=hosts,
    )


def _prints(path: Path) -> list[dict[str, Any]]:
    """Return the fingerprints, if there are any: by step, for each tensor [hash, mean, norm]."""
    found = read_records(path) if path.is_file() else []
    for place, line in enumerate(found, start=1):
        where = f"{path}, line {place}"
        checked.whole(where, line, "step")
        for kind in ("parameters", "buffers"):
            for name, entry in checked.table(where, line, kind).items():
                if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str):
                    raise checked.damaged(where, f"{name} is {entry!r:.60}", "[hash, mean, norm]")
                numbers = {"mean": entry[1], "norm": entry[2]}
                checked.numbers(where, {k: v for k, v in numbers.items() if v is not None}, least=-math.inf)
    return found


def spans(run: Run) -> tuple[Span, ...]:
    """Return the stretches of time that the ranks recorded for a few steps."""
    return tuple(
        Span(rank=rank, step=line["step"], name=name, start=line["began"] + start, seconds=seconds)
        for rank, lines in enumerate(run.steps)
        for line in lines
        for name, start, seconds in line.get("spans") or ()
    )


def check_order(path: Path, order: Mapping[str, Any]) -> None:
    """Check what a report takes from run.json."""
    where = str(path)
    spec, recipe, plan = (checked.table(where, order, name) for name in ("spec", "recipe", "plan"))
    checked.table(where, order, "versions")
    for name in ("strategy", "launcher"):
        checked.words(where, spec, name)
    checked.whole(where, spec, "workers", least=1)
    checked.words(where, recipe, "name")
    checked.whole(where, recipe, "global_batch", least=1)
    checked.whole(where, recipe, "seed", least=-(2**63))
    for name in ("lanes", "steps"):
        checked.whole(where, plan, name, least=1)


def check_result(path: Path, result: Mapping[str, Any]) -> int:
    """Check the figures of a run that is done; return how many ranks it had."""
    where = str(path)
    checked.digest(where, result, "digest")
    for name in ("seconds", "step_seconds", "samples_per_second", "start_seconds"):
        checked.number(where, result, name)
    for name in ("steps", "threads"):
        checked.whole(where, result, name, least=1)
    checked.words(where, result, "memory_measure")
    if result.get("loss") is not None:
        checked.number(where, result, "loss", least=-math.inf)
    metrics = checked.table(where, result, "metrics")  # null: a metric that was no number
    checked.numbers(where, {name: value for name, value in metrics.items() if value is not None}, least=-math.inf)
    memory = result.get("peak_memory")
    if not isinstance(memory, list) or not memory:
        raise checked.damaged(where, f"peak_memory is {memory!r:.60}", "a list with a number for each rank")
    checked.numbers(f"{where}, peak_memory by rank", {str(rank): count for rank, count in enumerate(memory)})
    ranks = result.get("ranks", [])
    if not isinstance(ranks, list) or not all(isinstance(entry, dict) for entry in ranks):
        raise checked.damaged(where, f"ranks is {ranks!r:.60}", "a list of objects")
    for entry in ranks:
        inside = f"{where}, rank {checked.whole(where, entry, 'rank')}"
        checked.numbers(inside, entry.get("parts") or {}, least=-TINY)
        for name in ("step_seconds", "hidden", "sent", "peak_memory"):
            if entry.get(name) is not None:
                checked.number(inside, entry, name)
    return len(memory)


def _rank_files(folder: Path, count: int | None) -> list[Path]:
    """Return the ranks' records: all of a finished run's, and whatever there is of another."""
    found = {path.name: path for path in folder.glob("rank-*.jsonl")}
    wanted = [f"rank-{rank}.jsonl" for rank in range(len(found) if count is None else count)]
    if count is not None and (missing := [name for name in wanted if name not in found]):
        raise BadInput(
            f"{folder / missing[0]} does not exist, and {folder / 'result.json'} tells of {count} ranks. {AGAIN}"
        )
    return [found[name] for name in wanted if name in found]


def _steps(path: Path, lines: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the lines that tell of a step, each checked."""
    for place, line in enumerate(lines, start=1):
        if "step" not in line:
            continue
        where = f"{path}, line {place}"
        checked.whole(where, line, "step")
        if line.get("loss", "") is not None:  # None: it was not finite, which JSON cannot say
            checked.number(where, line, "loss", least=-math.inf)
            checked.number(where, line, "weight")
        checked.numbers(where, line.get("seconds") or {}, least=-TINY)
        if line.get("spans"):
            checked.number(where, line, "began")
            _check_spans(where, line["spans"])
        yield line


def _check_spans(where: str, found: object) -> None:
    for entry in found if isinstance(found, list) else [found]:
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str):
            raise checked.damaged(where, f"a span is {entry!r:.60}", "[name, start, seconds]")
        checked.numbers(where, {"span's start": entry[1], "span's seconds": entry[2]})


def _check_whole(
    path: Path, lines: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], result: Mapping[str, Any]
) -> None:
    end = lines[-1] if lines and "end" in lines[-1] else None
    numbers = sorted({int(line["step"]) for line in steps})  # a run that went on from a checkpoint starts later
    whole = bool(numbers) and numbers == list(range(numbers[0], int(result["steps"])))
    if end is None or not whole:
        raise BadInput(
            f"{path} has {len(numbers)} of {result['steps']} steps{'' if end else ' and no end line'}: lines were lost "
            f"after the run. {AGAIN}"
        )
    if end.get("digest", result["digest"]) != result["digest"]:
        raise BadInput(
            f"{path} ends with digest {str(end['digest'])[:12]}, and result.json says {str(result['digest'])[:12]}: "
            f"one of them was changed after the run. {AGAIN}"
        )


Lines = Sequence[Mapping[str, Any]]


def _earlier(folder: Path) -> list[Sequence[Lines]]:
    """Return the step lines by rank of each attempt before the last, in order."""
    paths = [_rank_files(attempt, None) for attempt in attempts(folder)]
    return [[tuple(_steps(path, read_records(path))) for path in ranks] for ranks in paths]


def _losses(tries: Sequence[Sequence[Lines]]) -> list[float]:
    """Combine the ranks' records into one loss per step; a step that was done again counts as it was last."""
    sums: dict[int, list[float]] = {}
    for ranks in tries:
        again: dict[int, list[float]] = {}
        for line in (line for lines in ranks for line in lines):
            loss = math.nan if line["loss"] is None else float(line["loss"])
            weight = float(line.get("weight") or 0.0)
            entry = again.setdefault(int(line["step"]), [0.0, 0.0])
            entry[0] += loss * weight
            entry[1] += weight
        sums |= again
    return [total / weight for _, (total, weight) in sorted(sums.items()) if weight]
