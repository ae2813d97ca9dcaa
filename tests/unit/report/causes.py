"""Runs made up for tests: what a folder would say, with a cause that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.collect import Run
from lockstep.report.compare import Comparison, Measured, judge

MS = 1e-3
PLAIN = {
    "data": 1 * MS,
    "forward": 30 * MS,
    "backward": 60 * MS,
    "exchange": 2 * MS,
    "optimizer": 5 * MS,
    "wait": 2 * MS,
}


def parts(**changes: float) -> dict[str, float]:
    """Return the parts of a step of 100 ms, changed; in milliseconds."""
    return PLAIN | {part: value * MS for part, value in changes.items()}


def run(
    strategy: str = "single",
    workers: int = 1,
    *,
    ranks: Sequence[Mapping[str, float]] | None = None,
    digest: str = "a",
    threads: int = 1,
    sent: float = 0.0,
    backend: str = "",
    hidden: float = 0.0,
    prints: Sequence[Mapping[str, Any]] = (),
    losses: Sequence[float] = (4.0, 3.5, 3.0),
    weights: Sequence[float] | None = None,
    **other: Any,
) -> Run:
    """Return a run of a few equal steps; `ranks` has the parts of each rank's step."""
    each = list(ranks) if ranks is not None else [PLAIN] * (1 if strategy in ("single", "dp") else workers)
    whole = max(sum(one.values()) for one in each) or 0.1
    order = {
        "spec": {
            "strategy": strategy,
            "workers": workers,
            "launcher": "spawn",
            "device": "cpu",
            "sync_batchnorm": False,
        },
        "recipe": {"name": "made-up", "global_batch": 64, "seed": 0},
        "plan": {"lanes": other.pop("lanes", 2), "steps": len(losses), "samples": 64 * len(losses)},
        "versions": {"lockstep": "0.1.0", "torch": other.pop("torch", "2.13.0")},
        "host": other.pop("host", "host-a"),
        "cpus": other.pop("cpus", 2),
    }
    shares = weights or [64.0 / len(each)] * len(each)
    steps = tuple(
        tuple(
            {"step": step, "loss": loss, "weight": share, "seconds": dict(one), "total": sum(one.values()) or whole}
            for step, loss in enumerate(losses)
        )
        for one, share in zip(each, shares, strict=True)
    )
    result = {
        "outcome": "done",
        "digest": digest,
        "depends_on_workers": "",
        "seconds": whole * len(losses),
        "step_seconds": whole,
        "step_quartiles": [whole * 0.98, whole, whole * 1.02],
        "samples_per_second": 64 / whole,
        "warmup_steps": 1,
        "start_seconds": 0.5,
        "steps": len(losses),
        "threads": threads,
        "backend": backend,
        "peak_memory": [200 << 20] * len(each),
        "memory_measure": "peak RSS",
        "loss": losses[-1],
        "metrics": {"accuracy": 0.5},
        "ranks": [
            {"rank": rank, "host": "host-a", "step_seconds": whole, "parts": dict(one), "hidden": hidden, "sent": sent}
            | {"peak_memory": 200 << 20, "loss": losses[-1]}
            for rank, one in enumerate(each)
        ],
    } | other
    return Run(
        folder=Path(strategy),
        order=order,
        result=result,
        losses=tuple(losses),
        steps=steps,
        prints=tuple(prints),
    )


def way(name: str, *runs: Run, why_not: str = "") -> Measured:
    """Return a way of made-up runs; of none, one that did not run."""
    workers = int(runs[0].order["spec"]["workers"]) if runs else 2
    strategy = str(runs[0].order["spec"]["strategy"]) if runs else name
    return Measured(name=name, strategy=strategy, workers=workers, threads=1, runs=runs, why_not=why_not)


def compared(*runs: Run) -> Comparison:
    """Judge runs, one repeat each, named by strategy."""
    return judge("made up", [way(str(one.order["spec"]["strategy"]), one) for one in runs])


def prints(step: int, *, buffers: Mapping[str, float] | None = None, **parameters: float) -> dict[str, Any]:
    """Return one line of fingerprints; a tensor is made up of its norm alone."""
    tables = {"parameters": parameters, "buffers": buffers or {}}
    return {"step": step} | {
        kind: {name.replace("__", "."): [f"{norm!r}", 0.0, norm] for name, norm in table.items()}
        for kind, table in tables.items()
    }
