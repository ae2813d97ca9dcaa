"""Running a comparison: the same recipe every way, repeats interleaved, one row each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.errors import BadInput, LockstepError
from lockstep.launch.start import start_run
from lockstep.report.collect import Run, read_run
from lockstep.report.compare import with_speed_up
from lockstep.report.rows import Row, summarise
from lockstep.strategies import check_name, workers_of
from lockstep.train.records import create_folder
from lockstep.train.spec import RunSpec


@dataclass
class Way:
    """One row to be: an order, and the runs it gave."""

    name: str
    spec: RunSpec
    runs: list[Run] = field(default_factory=list)
    why_not: str = ""


def ways(spec: RunSpec, strategies: Sequence[str], cpus: int) -> list[Way]:
    """Return the rows of a comparison: the same lanes and threads for all, and `single` on all cores.

    Threads not given means CPUs // workers for every row: kernels give other bits at other thread counts.
    """
    for name in strategies:
        check_name(name)
    if len(set(strategies)) != len(strategies):
        raise BadInput(f"--strategies {','.join(strategies)}: each at most once")
    if spec.workers < 1:
        raise BadInput(f"workers={spec.workers}: at least 1 is needed")
    threads = spec.threads or max(1, cpus // spec.workers)
    rows = [
        Way(name, replace(spec, strategy=name, workers=workers_of(name, spec.workers), threads=threads))
        for name in strategies
    ]
    if "single" in strategies and cpus > threads:
        row = next(way for way in rows if way.name == "single")
        rows.append(Way(f"single, {cpus} threads", replace(row.spec, threads=cpus)))
    return rows


def run_all(rows: Sequence[Way], out: Path, repeats: int, tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Run every way `repeats` times, one after another in turn, so that a noisy minute hurts all alike.

    A way that cannot run becomes a row that says why, and the rest goes on; if every way was refused, what was
    asked is at fault, and that is raised instead.
    """
    create_folder(out)
    refused: list[BadInput] = []
    for repeat in range(repeats):
        for way in rows:
            if way.why_not:
                continue
            tell(f"{way.name}, repeat {repeat + 1} of {repeats}")
            try:
                folder = out / f"{way.name.replace(', ', '-').replace(' ', '-')}-{repeat + 1}"
                way.runs.append(read_run(start_run(way.spec, folder)))
            except LockstepError as error:
                way.why_not = str(error)
                refused += [error] if isinstance(error, BadInput) else []
    if len(refused) == len(rows):
        shutil.rmtree(out)  # nothing ran, so nothing is in it
        raise refused[0]
    return with_speed_up([summarise(way.name, way.spec.workers, _threads(way), way.runs, way.why_not) for way in rows])


def _threads(way: Way) -> int:
    return int(way.runs[-1].result["threads"]) if way.runs else way.spec.threads or 0
