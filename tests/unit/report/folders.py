"""Run folders made up for tests, as the training loop would have written them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from lockstep.train.records import write_json

PARTS = {"data": 0.001, "forward": 0.010, "backward": 0.020, "exchange": 0.006, "optimizer": 0.002, "wait": 0.001}
BEGAN = 1_780_000_000.0


def order(
    strategy: str, workers: int, *, threads: int = 1, host: str = "host-a", recipe: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a run.json."""
    spec = {"recipe": "tiny.py", "strategy": strategy, "workers": workers, "launcher": "spawn", "lanes": 4}
    spec |= {"threads": threads, "device": "cpu", "backend": None, "steps": 6, "epochs": None, "global_batch": None}
    spec |= {"seed": None, "sync_batchnorm": False, "data": None, "progress": False}
    return {
        "spec": spec,
        "recipe": {"name": "tiny", "global_batch": 32, "epochs": 1, "seed": 0, **(recipe or {})},
        "plan": {"samples": 256, "lanes": 4, "epoch_steps": 8, "steps": 6},
        "versions": {"lockstep": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "host": host,
        "created": BEGAN,
    }


def make_run(folder: Path, *, slower: float = 1.0, state: str = "a", **what: Any) -> Path:
    """Write the folder of a run that is done."""
    asked = order(**what)
    workers = asked["spec"]["workers"]
    folder.mkdir(parents=True)
    write_json(folder / "run.json", asked)
    digest = hashlib.sha256(state.encode()).hexdigest()
    parts = {name: seconds * slower for name, seconds in PARTS.items()}
    whole = sum(parts.values())
    for rank in range(workers):
        lines: list[dict[str, Any]] = [{"rank": rank, "size": workers, "host": asked["host"], "pid": 1}]
        lines += [_step(step, rank, parts, whole) for step in range(6)]
        lines.append({"end": "done", "seconds": 6 * whole, "peak_memory": 3 * 2**27 + rank, "digest": digest})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"rank-{rank}.jsonl").write_text(text)
    write_json(folder / "result.json", _result(asked, workers, parts, whole, digest))
    return folder


def _step(step: int, rank: int, parts: dict[str, float], whole: float) -> dict[str, Any]:
    line: dict[str, Any] = {"step": step, "epoch": 0, "loss": 3.0 - 0.2 * step + 0.01 * rank, "weight": 16.0}
    line |= {"seconds": parts, "total": whole, "began": BEGAN + step * whole, "hidden": 0.002, "sent": 4_000_000}
    if step in (2, 3):
        start, spans = 0.0, []
        for name, seconds in parts.items():
            spans.append([name, start, seconds])
            start += seconds
        line["spans"] = spans
    return line


def _result(asked: dict[str, Any], workers: int, parts: dict[str, float], whole: float, digest: str) -> dict[str, Any]:
    rank = {"step_seconds": whole, "parts": parts, "hidden": 0.002, "sent": 4_000_000, "peak_memory": 3 * 2**27}
    return {
        "outcome": "done",
        "digest": digest,
        "depends_on_workers": "",
        "seconds": 6 * whole,
        "step_seconds": whole,
        "step_quartiles": [whole * 0.95, whole, whole * 1.1],
        "samples_per_second": 32 / whole,
        "start_seconds": 0.4,
        "warmup_steps": 1,
        "steps": 6,
        "threads": asked["spec"]["threads"],
        "device": "cpu",
        "backend": "gloo" if workers > 1 else None,
        "peak_memory": [3 * 2**27 + rank for rank in range(workers)],
        "memory_measure": "peak RSS",
        "loss": 2.0,
        "metrics": {"accuracy": 0.5},
        "ranks": [{"rank": number, "host": asked["host"], "loss": 2.0, **rank} for number in range(workers)],
    }


def change(path: Path, **fields: Any) -> None:
    """Tamper with a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
