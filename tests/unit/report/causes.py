"""Runs made up for tests: what a folder would say, with a cause that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.collect import FinishedRun
from lockstep.report.compare import Comparison, Measured, judge
from lockstep.strategies.clock import PARTS, Part
from lockstep.train.schema.fingerprints_jsonl import Fingerprint, FingerprintLine
from lockstep.train.schema.rank_jsonl import StepLine
from tests.unit.report.values import BEGAN, digest, rank_result, result_of, setup

MS = 1e-3
PLAIN: dict[Part, float] = {
    "data": 1 * MS,
    "forward": 30 * MS,
    "backward": 60 * MS,
    "exchange": 2 * MS,
    "optimizer": 5 * MS,
    "wait": 2 * MS,
}


def parts(**changes: float) -> dict[Part, float]:
    """Return the parts of a step of 100 ms, changed; in milliseconds."""
    return PLAIN | {part: changes[part] * MS for part in PARTS if part in changes}


def run(
    strategy: str = "single",
    workers: int = 1,
    *,
    ranks: Sequence[Mapping[Part, float]] | None = None,
    state: str = "a",
    threads: int = 1,
    sent: int = 0,
    backend: str = "",
    hidden: float = 0.0,
    fingerprints: Sequence[FingerprintLine] = (),
    losses: Sequence[float] = (4.0, 3.5, 3.25, 3.125, 3.0),
    weights: Sequence[float] | None = None,
    lanes: int = 2,
    torch: str = "2.13.0",
    host: str = "host-a",
    cpus: int = 2,
    **result: Any,
) -> FinishedRun:
    """Return a run of a few equal steps; `ranks` has the parts of each rank's step."""
    each = list(ranks) if ranks is not None else [PLAIN] * (1 if strategy in ("single", "dp") else workers)
    whole = max(sum(one.values()) for one in each) or 0.1
    asked = setup(
        strategy,
        workers,
        host=host,
        cpus=cpus,
        torch=torch,
        recipe={"name": "made-up", "global_batch": 64},
        plan={"lanes": lanes, "steps": len(losses), "samples": 64 * len(losses)},
    )
    shares = weights or [64.0 / len(each)] * len(each)
    steps = tuple(
        tuple(_step(step, loss, share, one, sum(one.values()) or whole) for step, loss in enumerate(losses))
        for one, share in zip(each, shares, strict=True)
    )
    figures = {"step_seconds": whole, "hidden": hidden, "sent": sent, "loss": losses[-1]}
    quartiles = (whole * 0.98, whole, whole * 1.02)
    entries = [rank_result(rank, one, step_quartiles=quartiles, **figures) for rank, one in enumerate(each)]
    plain = {"samples_per_second": 64 / whole, "backend": backend or None, "threads": threads, "loss": losses[-1]}
    return FinishedRun(
        folder=Path(strategy),
        setup=asked,
        result=result_of(entries, len(losses), **{**plain, "digest": digest(state), **result}),
        losses=tuple(losses),
        steps=steps,
        fingerprints=tuple(fingerprints),
    )


def _step(step: int, loss: float, weight: float, seconds: Mapping[Part, float], total: float) -> StepLine:
    return StepLine(
        step=step,
        epoch=0,
        loss=loss,
        weight=weight,
        total=total,
        began=BEGAN + step * total,
        seconds=dict(seconds),
    )


def way(name: str, *runs: FinishedRun, why_not: str = "") -> Measured:
    """Return a way of made-up runs; of none, one that did not run."""
    workers = runs[0].setup.spec.workers if runs else 2
    strategy = runs[0].setup.spec.strategy if runs else name
    return Measured(name=name, strategy=strategy, workers=workers, threads=1, runs=runs, why_not=why_not)


def compared(*runs: FinishedRun) -> Comparison:
    """Judge runs, one repeat each, named by strategy."""
    return judge("made up", [way(one.setup.spec.strategy, one) for one in runs])


def fingerprints(step: int, *, buffers: Mapping[str, float] | None = None, **parameters: float) -> FingerprintLine:
    """Return one line of fingerprints; a tensor is made up of its norm alone."""
    return FingerprintLine(step=step, parameters=_tensors(parameters), buffers=_tensors(buffers or {}))


def _tensors(norms: Mapping[str, float]) -> dict[str, Fingerprint]:
    return {name.replace("__", "."): Fingerprint(digest(f"{norm!r}")[:16], 0.0, norm) for name, norm in norms.items()}
