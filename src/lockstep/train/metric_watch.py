"""Following one metric: the weights are written when it is best, and the run stops when it has not been for too long.

All ranks have the same metrics, so all decide alike.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lockstep.train.best_metric import check_metric, wanted_metric
from lockstep.train.final_weights import write_weights
from lockstep.train.weights import BEST

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.train.spec import RunSpec
    from lockstep.train.trainer import Trainer


class MetricWatch:
    """What `--keep-best` and `--patience` ask for; the state is `trainer.best`, which checkpoints keep."""

    def __init__(self, spec: RunSpec, folder: Path, recipe: str, trainer: Trainer) -> None:
        self._path, self._recipe, self._patience = folder / BEST, recipe, spec.patience
        wanted = wanted_metric(spec.keep_best) if spec.keep_best is not None else None
        if wanted is None or not wanted.same_target(trainer.best):
            trainer.best = wanted
        self.stopped = ""
        """Why the run stops before its last step; empty while it does not."""
        self.note = ""
        """What the progress line says of it."""
        self.seconds = 0.0

    def check(self, trainer: Trainer, names: list[str]) -> None:
        """Refuse a metric that is not among those that the evaluation returns."""
        if trainer.best is not None:
            check_metric(trainer.best, names)

    def after(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Take notice of an evaluation; all ranks call this together."""
        if trainer.best is None:
            return
        self.check(trainer, list(metrics))
        best = trainer.best = trainer.best.after(metrics[trainer.best.metric], trainer.steps)
        if best.stale == 0:
            self._write(trainer)
            self.note = f"the best {best.metric} so far"
        elif best.value is not None:
            self.note = f"best {best.metric} {best.value:.4f} after {best.steps} steps"
        if self._patience is not None and best.stale >= self._patience:
            self.stopped = best.why_stopped(trainer.steps)

    def _write(self, trainer: Trainer) -> None:
        began = time.perf_counter()
        best = trainer.best
        assert best is not None
        about = {"recipe": self._recipe, "step": trainer.steps, "metric": best.metric, "value": best.value}
        write_weights(self._path, trainer.mesh.everyone, trainer.strategy.holdings(), trainer.model, about)
        self.seconds += time.perf_counter() - began
