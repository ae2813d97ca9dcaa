"""`lockstep.notebook.compare`: what cells define, trained every way, side by side, with the report below the cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.notebook.cell_input import Trainable, check_settings, check_workers, new_folder, private_folder, trainable
from lockstep.notebook.report_frame import TEXT, framed
from lockstep.notebook.running import converse
from lockstep.notebook.screen import this_screen
from lockstep.notebook.starter_messages import Message, StarterRequest
from lockstep.report.files import PAGE

CALL = "lockstep.notebook.compare"
OWN = ["strategies", "workers", "lanes", "repeats", "time_limit", "peers", "out"]
NOT_HERE = ("strategy", "checkpoint_every", "eval_every", "keep_best", "patience", "stall_limit", "tensorboard")
"""Settings of one run, which a comparison does not have."""


@dataclass(frozen=True, kw_only=True)
class ComparedWays:
    """A comparison that was shown."""

    folder: Path
    """Its folder, as `lockstep compare` makes it: plan, run folders, report."""
    recommendation: tuple[str, ...]
    """What to use, a sentence each."""
    rows: tuple[dict[str, Any], ...]
    """The table, a row for each way, with the names of `comparison.json`."""

    def __repr__(self) -> str:
        return "\n".join([*self.recommendation, f"report: {self.folder / PAGE}"])


def compare(
    what: Any,
    *,
    strategies: Sequence[str] | str | None = None,
    workers: int | Sequence[int] = 2,
    lanes: int | Sequence[int] | None = None,
    repeats: int | None = None,
    time_limit: float | None = None,
    peers: bool = False,
    out: str | Path | None = None,
    **settings: Any,
) -> ComparedWays:
    """Train a recipe several ways, one after another, and show the report below the cell.

    `what` is as in `run`, but no function that trains by itself. The other settings have the names that the options of
    `lockstep compare` have: steps, epochs, threads, seed and so on.
    """
    thing = trainable(what, CALL)
    for name in NOT_HERE:
        if name in settings:
            raise BadInput(f"{CALL} has no setting {name!r}: it is one of a single run, lockstep.notebook.run")
    given = check_settings(settings, CALL, OWN)
    counts, screen = _numbers(workers), this_screen()
    for count in counts:
        check_workers(count, given, None)
    names = strategies.split(",") if isinstance(strategies, str) else strategies
    folder = new_folder(f"compare-{thing.name}") if out is None else Path(out).absolute()
    with private_folder(given.get("launcher", "spawn"), folder) as private, screen.status() as status:
        request = StarterRequest(
            task="compare",
            folder=str(private),
            out=str(folder),
            given={"launcher": "spawn", **given, "recipe": thing.packed(private)},
            strategies=None if names is None else tuple(names),
            workers=counts,
            lanes=(None,) if lanes is None else _numbers(lanes),
            repeats=repeats,
            time_limit=time_limit,
            peers=peers,
            command=_command(thing, strategies=strategies, workers=workers, lanes=lanes, repeats=repeats, **settings),
        )

        def hear(message: Message) -> None:
            if message.kind == "say":
                status.say(message.text)

        converse(request, screen, hear=hear)
        text = (private / TEXT).read_text(encoding="utf-8")
        screen.show(text, framed(private, folder / PAGE))
    made = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    return ComparedWays(folder=folder, recommendation=tuple(made["recommendation"]), rows=tuple(made["rows"]))


def _numbers(given: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({given} if isinstance(given, int) else set(given)))


def _command(thing: Trainable, **keywords: Any) -> str:
    """Return the call as a cell would have it."""
    said = [f"{name}={value!r}" for name, value in keywords.items() if value is not None]
    return f"{CALL}({', '.join([repr(thing.value) if isinstance(thing.value, str) else thing.variable, *said])})"
