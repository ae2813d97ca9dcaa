"""What a run does between two steps, in one order: while it is done all ranks stand still, and no step's time runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.strategies.base import StepStats
    from lockstep.train.evaluations import Evaluations
    from lockstep.train.fingerprints import Fingerprints
    from lockstep.train.keeper import Keeper
    from lockstep.train.progress import Progress
    from lockstep.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Between:
    """Evaluations first: what follows from them is in the checkpoint."""

    trainer: Trainer
    steps: int
    """Of the whole run."""
    progress: Progress
    evaluations: Evaluations
    fingerprints: Fingerprints | None
    """None with `--no-measure`."""
    keeper: Keeper

    def after(self, stats: StepStats) -> None:
        """Do what is due after a step; all ranks call this together."""
        trainer = self.trainer
        last = trainer.steps == self.steps
        metrics = self.evaluations.after(trainer)
        if metrics is not None:
            self.progress.evaluated(metrics)
        if self.fingerprints is not None:
            self.fingerprints.after(stats.step, trainer.strategy.holdings, last=last)
        self.keeper.after(trainer, last=last)

    @property
    def seconds(self) -> float:
        """How long it took in all."""
        parts = (self.evaluations, self.fingerprints, self.keeper)
        return sum(part.seconds for part in parts if part is not None)
