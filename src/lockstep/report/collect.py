"""Reading run folders: whole, or refused with what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.train.records import read_json, read_records

NEEDED = (
    "digest",
    "seconds",
    "step_seconds",
    "samples_per_second",
    "steps",
    "peak_memory",
    "memory_measure",
    "metrics",
)
"""What every finished run's result has."""


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
    """The global loss of each step: the ranks' means, weighted."""
    steps: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    """The step lines of each rank, in order."""
    prints: tuple[Mapping[str, Any], ...] = ()
    """Fingerprints of the weights at a few steps, if they were taken."""

    @property
    def done(self) -> bool:
        """Whether it ended well."""
        return bool(self.result.get("outcome") == "done")


def read_run(folder: Path) -> Run:
    """Read one run folder whole, or refuse it and say what is wrong.

    A finished run is checked against itself: every rank's file has all steps and an end, and the digest that the
    ranks noted is the one in the result.
    """
    order, result = read_json(folder / "run.json"), read_json(folder / "result.json")
    paths = sorted(folder.glob("rank-*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank-")))
    ranks = [read_records(path) for path in paths]
    steps = tuple(tuple(line for line in lines if "step" in line) for lines in ranks)
    if result.get("outcome") == "done":
        _check_result(folder, order, result)
        for path, lines, own in zip(paths, ranks, steps, strict=True):
            _check_rank(path, lines, own, result)
    losses = tuple(_losses(folder, steps))
    return Run(folder=folder, order=order, result=result, losses=losses, steps=steps, prints=tuple(_prints(folder)))


def _prints(folder: Path) -> list[dict[str, Any]]:
    path = folder / "prints.jsonl"
    found = read_records(path) if path.is_file() else []
    for line in found:
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise BadInput(f"{path} has a line that is no fingerprint: {line!r:.80}")
    return found


def _check_result(folder: Path, order: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    absent = [key for key in NEEDED if key not in result]
    absent += [f"run.json's {key}" for key in ("spec", "recipe", "plan", "versions") if key not in order]
    if absent:
        raise BadInput(
            f"{folder / 'result.json'} lacks {', '.join(absent)}: it was changed, or another version wrote it"
        )
    for key in ("seconds", "step_seconds", "samples_per_second"):
        if not isinstance(result[key], int | float) or not 0.0 < result[key] < math.inf:
            raise BadInput(f"{folder / 'result.json'} has {key} {result[key]!r:.40}: a positive number is needed")


def _check_rank(
    path: Path, lines: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], result: Mapping[str, Any]
) -> None:
    end = lines[-1] if lines and "end" in lines[-1] else None
    numbers = sorted({int(line["step"]) for line in steps})  # a run that went on from a checkpoint starts later
    whole = bool(numbers) and numbers == list(range(numbers[0], int(result["steps"])))
    if end is None or not whole:
        raise BadInput(
            f"{path} has {len(numbers)} of {result['steps']} steps{'' if end else ' and no end line'}: lines were lost "
            "after the run. Run it again"
        )
    if end.get("digest", result["digest"]) != result["digest"]:
        raise BadInput(
            f"{path} ends with digest {str(end['digest'])[:12]}, and result.json says {str(result['digest'])[:12]}: "
            "one of them was changed after the run"
        )


def _losses(folder: Path, ranks: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Combine the ranks' records into one loss per step."""
    sums: dict[int, list[float]] = {}
    for line in (line for lines in ranks for line in lines):
        if line.get("loss", 0.0) is None:  # a step that ended the run: its loss was no number
            continue
        try:
            loss = float(line["loss"])
            entry = sums.setdefault(int(line["step"]), [0.0, 0.0])
            entry[0] += loss * float(line["weight"])
            entry[1] += float(line["weight"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{folder} has a step without loss and weight: {line!r:.80}") from error
    return [total / weight for _, (total, weight) in sorted(sums.items()) if weight]
