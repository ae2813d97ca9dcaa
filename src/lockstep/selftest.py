"""`lockstep selftest`: the promises, run on the machine that is here, as a table that can be pasted into an issue."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput, LockstepError
from lockstep.launch.start import start_run
from lockstep.registry import STRATEGIES
from lockstep.report.collect import read_finished
from lockstep.train.schema.result_json import Done
from lockstep.train.spec import RunSpec, versions
from lockstep.world.resources import usable_cpus

RECIPE, LANES, STEPS, GLOBAL_BATCH = "cifar100", 4, 4, 32
"""A small network with BatchNorm: a few steps are enough to tell bits apart."""


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    promise: str
    """What is promised."""
    what: str
    """How it was tried."""
    result: str
    """What came out."""
    holds: bool | None
    """Whether it holds; None: nothing to hold, or it could not be tried."""


def checks(device: str, workers: int, tell: Callable[[str], None]) -> Iterator[Check]:
    """Run the promises one after another."""
    with tempfile.TemporaryDirectory(prefix="lockstep-selftest-") as folder:
        runs = _Runs(device, Path(folder), tell)
        alone = runs.done("single", 1)
        if isinstance(alone, str):
            yield Check("it trains", "single", alone, False)
            return
        yield Check("it trains", f"single on {alone.device}", f"digest {alone.digest[:12]}", True)
        yield _same("the same bits twice", "single, again", runs.done("single", 1), alone)
        for name, count in _ways(workers):
            yield _same("the same bits", f"{name}, {_workers(count)}", runs.done(name, count), alone)
        together = runs.done("ddp", workers)
        if isinstance(together, Done):
            yield from _figures(alone, together, runs.done("ddp", workers, exact=False), workers)


def facts(device: str) -> dict[str, Any]:
    """Return what was tested: versions and devices."""
    from lockstep.doctor import devices_here

    return {**versions(), "cpus": usable_cpus(), "asked for": device, "devices": devices_here() or "none but the CPU"}


class _Runs:
    def __init__(self, device: str, folder: Path, tell: Callable[[str], None]) -> None:
        self._spec = RunSpec(
            recipe=RECIPE,
            launcher="spawn",
            device=device,
            threads=1,
            lanes=LANES,
            steps=STEPS,
            global_batch=GLOBAL_BATCH,
            progress=False,
        )
        self._folder, self._tell, self._count = folder, tell, 0

    def done(self, strategy: str, workers: int, *, exact: bool = True) -> Done | str:
        """Run once; return the result, or why there is none."""
        self._tell(f"{strategy}, {_workers(workers)}{'' if exact else ', inexact'}")
        self._count += 1
        spec = replace(self._spec, strategy=strategy, workers=workers, exact=exact)
        try:
            result = read_finished(start_run(spec, self._folder / str(self._count))).result
        except BadInput as error:
            return f"not tried: {error}"
        except LockstepError as error:
            return f"failed: {error}"
        return result


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def _ways(workers: int) -> list[tuple[str, int]]:
    names = [
        one.name for one in STRATEGIES.all() if one.exact and one.most_workers is None and one.unavailable() is None
    ]
    return [("ddp", 1), *((name, workers) for name in names)]


def _same(promise: str, what: str, run: Done | str, alone: Done) -> Check:
    if isinstance(run, str):
        return Check(promise, what, run.splitlines()[0], None if run.startswith("not tried") else False)
    same = run.digest == alone.digest
    return Check(promise, what, "one digest" if same else f"another digest: {run.digest[:12]}", same)


def _figures(alone: Done, together: Done, inexact: Done | str, workers: int) -> Iterator[Check]:
    yield Check("memory", f"{alone.memory_measure}: single, ddp on {workers}", _memory(alone, together), None)
    slowest = max(together.ranks, key=lambda one: one.step_seconds)
    exchange = slowest.parts.get("exchange", 0.0)
    shown = f"{slowest.hidden * 1e3:.1f} ms behind backward, {exchange * 1e3:.1f} ms in the open"
    yield Check("overlap", f"exchange of a step, ddp on {workers}", shown, None)
    if isinstance(inexact, Done):
        cost = together.step_seconds / inexact.step_seconds
        yield Check("cost of the bits", "a step of ddp, exact against inexact", f"{cost:.2f} times", None)


def _memory(*runs: Done) -> str:
    def largest(figures: Sequence[int]) -> str:
        return f"{max(figures) / 2**20:.0f} MiB"

    shown = (
        largest(one.peak_memory) + (f" ({largest(one.peak_reserved)} reserved)" if one.peak_reserved else "")
        for one in runs
    )
    return ", ".join(shown)


def as_table(tried: list[Check], about: dict[str, Any]) -> str:
    """Return Markdown, which is also readable as it is."""
    words = {True: "yes", False: "NO", None: "-"}
    lines = [f"{name}: {value}" for name, value in about.items()]
    lines += ["", "| promise | tried | result | holds |", "|---|---|---|---|"]
    lines += [f"| {one.promise} | {one.what} | {_cell(one.result)} | {words[one.holds]} |" for one in tried]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "/")
