"""Values of the run folder's schema made up for tests: plain, but for what a test changes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lockstep.train.schema.rank_jsonl import HeaderLine
from lockstep.train.schema.result_json import Done, RankResult
from lockstep.train.schema.run_json import RecipeFacts, Setup, StepCount
from lockstep.train.schema.scalars import Part
from lockstep.train.spec import RunSpec

BEGAN = 1_780_000_000.0


def digest(state: str) -> str:
    """Return the digest of a made-up state."""
    return hashlib.sha256(state.encode()).hexdigest()


def setup(
    strategy: str = "single",
    workers: int = 1,
    *,
    threads: int = 1,
    host: str = "host-a",
    cpus: int = 2,
    torch: str = "2.13.0",
    recipe: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Setup:
    """Return a run.json."""
    asked = {"recipe": "tiny.py", "launcher": "spawn", "lanes": 4, "steps": 6, "device": "cpu", "progress": False}
    facts = {"name": "tiny", "global_batch": 32, "epochs": 1, "seed": 0, "source": "", **(recipe or {})}
    return Setup(
        spec=RunSpec(**{**asked, **spec}, strategy=strategy, workers=workers, threads=threads),
        recipe=RecipeFacts(**facts),
        plan=StepCount(**{"samples": 256, "lanes": 4, "epoch_steps": 8, "steps": 6, **(plan or {})}),
        versions={"lockstep": "0.1.0", "torch": torch, "python": "3.11.9"},
        host=host,
        cpu="",
        cpus=cpus,
        created=BEGAN,
    )


def header(rank: int, size: int, host: str = "host-a") -> HeaderLine:
    """Return the first line of a rank."""
    return HeaderLine(
        cpus=2,
        rank=rank,
        size=size,
        replica=rank,
        stage=0,
        host=host,
        pid=1,
        device="cpu",
        threads=1,
        backend="gloo" if size > 1 else None,
        lanes=4,
        time=BEGAN,
        exchange="",
        optimizer="",
    )


def rank_result(rank: int, parts: Mapping[Part, float], **changes: Any) -> RankResult:
    """Return the figures of a rank whose steps are all alike."""
    whole = sum(parts.values())
    plain = RankResult(
        rank=rank,
        replica=rank,
        stage=0,
        host="host-a",
        step_seconds=whole,
        step_quartiles=(whole * 0.95, whole, whole * 1.1),
        parts=dict(parts),
        hidden=0.0,
        sent=0,
        peak_memory=200 << 20,
        loss=2.0,
        weight=16.0,
    )
    return msgspec.structs.replace(plain, **changes)


def result_of(ranks: Sequence[RankResult], steps: int, **changes: Any) -> Done:
    """Return the result of a run of these ranks."""
    slowest = max(ranks, key=lambda rank: rank.step_seconds)
    plain = Done(
        finite=True,
        measured=True,
        digest=digest("a"),
        depends_on_workers="",
        same_bits_up_to=0,
        exchange="",
        optimizer="",
        seconds=steps * slowest.step_seconds,
        pause_seconds=0.0,
        compile_seconds=0.0,
        start_seconds=0.4,
        warmup_steps=1,
        step_seconds=slowest.step_seconds,
        step_quartiles=slowest.step_quartiles,
        samples_per_second=32 / slowest.step_seconds,
        steps=steps,
        threads=1,
        device="cpu",
        backend="gloo" if len(ranks) > 1 else None,
        peak_memory=tuple(rank.peak_memory for rank in ranks),
        memory_measure="peak RSS",
        loss=2.0,
        metrics={"accuracy": 0.5},
        ranks=tuple(ranks),
    )
    return msgspec.structs.replace(plain, **changes)
