"""Reading run folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.train.records import read_json, read_records


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run folder says."""

    folder: Path
    """Where it was read."""
    order: dict[str, Any]
    """run.json."""
    result: dict[str, Any]
    """result.json."""
    losses: tuple[float, ...]
    """The global loss of each step: the ranks' means, weighted."""

    @property
    def done(self) -> bool:
        """Whether it ended well."""
        return bool(self.result.get("outcome") == "done")


def read_run(folder: Path) -> Run:
    """Read one run folder whole, or refuse it and say what is wrong."""
    order, result = read_json(folder / "run.json"), read_json(folder / "result.json")
    return Run(folder=folder, order=order, result=result, losses=tuple(_losses(folder)))


def _losses(folder: Path) -> list[float]:
    """Combine the ranks' records into one loss per step."""
    sums: dict[int, list[float]] = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in read_records(path):
            if "step" in line:
                try:
                    entry = sums.setdefault(int(line["step"]), [0.0, 0.0])
                    entry[0] += float(line["loss"]) * float(line["weight"])
                    entry[1] += float(line["weight"])
                except (KeyError, TypeError, ValueError) as error:
                    raise BadInput(f"{path} has a step without loss and weight: {line!r:.80}") from error
    return [total / weight for _, (total, weight) in sorted(sums.items()) if weight]
