"""What a run does between two steps, in one order: while it is done all ranks stand still, and no step's time runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.strategies.base import StepStats
    from lockstep.train.evaluations import Evaluations
    from lockstep.train.fingerprints import Fingerprints
    from lockstep.train.followers import Followers
    from lockstep.train.keeper import Keeper
    from lockstep.train.metric_watch import MetricWatch
    from lockstep.train.progress import Progress
    from lockstep.train.stop_signal import StopSignal
    from lockstep.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Between:
    """Evaluations first: what follows from them is in the checkpoint, and may end the run."""

    trainer: Trainer
    steps: int
    """Of the whole run."""
    progress: Progress
    evaluations: Evaluations
    fingerprints: Fingerprints | None
    """None with `--no-measure`."""
    watch: MetricWatch
    keeper: Keeper
    followers: Followers
    stop: StopSignal | None = None
    """None: nothing stops the run before its end."""

    def after(self, stats: StepStats, total: float) -> bool:
        """Do what is due after a step of so many seconds, say whether the run goes on; all ranks call this together."""
        trainer = self.trainer
        metrics = self.evaluations.after(trainer)
        if metrics is not None:
            self.watch.after(trainer, metrics)
            self.progress.evaluated(metrics, self.watch.note)
        last = trainer.steps == self.steps or bool(self.watch.stopped)
        if self.fingerprints is not None:
            self.fingerprints.after(stats.step, trainer.strategy.holdings, last=last)
        everyone, apart = trainer.mesh.everyone, trainer.mesh.stages > 1
        stop = not last and self.stop is not None and self.stop.after(trainer.steps, everyone, apart=apart)
        self.keeper.after(trainer, last=last, stop=stop)
        self.followers.after(stats, total, metrics or {}, last=last)
        return not last and not stop

    @property
    def seconds(self) -> float:
        """How long it took in all."""
        parts = (self.evaluations, self.watch, self.fingerprints, self.keeper, self.followers)
        return sum(part.seconds for part in parts if part is not None)
