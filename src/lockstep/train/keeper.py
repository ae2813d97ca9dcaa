"""The checkpoints of a run: written between steps, and the last good one loaded when a run goes on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import msgspec

from lockstep.train.checkpoint import save
from lockstep.train.checkpoint_folder import last_good, path_of, prune
from lockstep.train.schema.rank_jsonl import CheckpointLine
from lockstep.train.schema.run_json import Resumption, read_setup

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.train.checkpoint_file import Saved
    from lockstep.train.records import Records
    from lockstep.train.trainer import Trainer


class Keeper:
    """Writes a checkpoint every so many steps and after the last; all ranks stand still, and it is no step's time."""

    def __init__(self, folder: Path, recipe: str, every: int | None, records: Records) -> None:
        self._folder, self._recipe, self._records, self._every = folder, recipe, records, every
        self.seconds = 0.0

    def after(self, trainer: Trainer, *, last: bool, stop: bool = False) -> None:
        """Write one if this step is one of those, or if the run stops here."""
        done = trainer.steps
        if not stop and (not self._every or (done % self._every and not last)):
            return
        began = time.perf_counter()
        save(trainer, path_of(self._folder, done), trainer.arithmetic(self._recipe))
        if trainer.world.rank == 0:
            prune(self._folder)
        took = time.perf_counter() - began
        self.seconds += took
        self._records.write(CheckpointLine(steps=done, seconds=round(took, 7), stop=stop))


def go_on(trainer: Trainer, folder: Path, recipe: str) -> list[Resumption]:
    """Load the last good checkpoint; return the history of the run, with what may make other bits."""
    damaged: list[str] = []

    def newest() -> Saved:
        saved, wrong = last_good(folder)
        damaged.extend(f"{text}. Went on from {saved.path.name}" for text in wrong)
        return saved

    warnings = [*trainer.resume(newest, trainer.arithmetic(recipe)), *damaged]
    if trainer.world.rank:
        return []
    *before, last = read_setup(folder).resumed
    warnings = [*last.warnings, *warnings]
    for text in warnings:
        print(f"lockstep: warning: {text}", file=sys.stderr, flush=True)  # noqa: T201
    return [*before, msgspec.structs.replace(last, warnings=tuple(warnings))]
