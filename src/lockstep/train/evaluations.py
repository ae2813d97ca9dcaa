"""The evaluations of a run: after which steps, what they returned, and how long all ranks stood still for them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from lockstep.comm.broadcast import broadcast_text
from lockstep.train.result_figures import finite_or_none
from lockstep.train.schema.rank_jsonl import EvaluationLine

if TYPE_CHECKING:
    from lockstep.recipe import Plan, Recipe
    from lockstep.train.records import Records
    from lockstep.train.spec import RunSpec
    from lockstep.train.trainer import Trainer


def evaluation_batch(recipe: Recipe, plan: Plan) -> int:
    """Return how many samples are evaluated at a time: as many as a lane has."""
    return max(1, recipe.global_batch // plan.lanes)


def evaluation_interval(spec: RunSpec, plan: Plan) -> int | None:
    """Return after how many steps a run evaluates, besides after its last; None: only then."""
    return spec.eval_every or (plan.epoch_steps if spec.monitored else None)


class Evaluations:
    """Evaluates every so many steps and after the last; all ranks stand still, and it is no step's time."""

    def __init__(self, spec: RunSpec, recipe: Recipe, plan: Plan, records: Records) -> None:
        self._recipe, self._records = recipe, records
        self._interval, self._steps = evaluation_interval(spec, plan), plan.steps
        self._batch = evaluation_batch(recipe, plan)
        self._dataset: Any = None
        self.metrics: dict[str, float] = {}
        """Of the last evaluation."""
        self.seconds = 0.0

    def is_due(self, done: int) -> bool:
        """Say whether to evaluate after so many steps."""
        if self._recipe.evaluate is None:
            return False
        return done == self._steps or (self._interval is not None and done % self._interval == 0)

    def names(self, trainer: Trainer) -> list[str]:
        """Return the names of the metrics, from one part of the data, before the first step."""
        metrics = self._recipe.evaluate
        assert metrics is not None
        collate, few = self._recipe.collate, self._batch
        return list(trainer.evaluate(metrics, self._data(), batch=few, collate=collate, most=few))

    def after(self, trainer: Trainer) -> dict[str, float] | None:
        """Return the metrics, the same on all ranks; None if no evaluation is due after this step."""
        if not self.is_due(trainer.steps):
            return None
        began = time.perf_counter()
        self.metrics = self._evaluate(trainer)
        took = time.perf_counter() - began
        self.seconds += took
        line = EvaluationLine(steps=trainer.steps, metrics=finite_or_none(self.metrics), seconds=round(took, 7))
        self._records.write(line)
        return self.metrics

    def _evaluate(self, trainer: Trainer) -> dict[str, float]:
        metrics, recipe = self._recipe.evaluate, self._recipe
        assert metrics is not None
        mine = trainer.evaluate(metrics, self._data(), batch=self._batch, collate=recipe.collate)
        # What follows from the metrics is decided on every rank, so all must have the same numbers: those of rank 0.
        agreed: dict[str, float] = json.loads(broadcast_text(json.dumps(mine), trainer.mesh.everyone))
        return agreed

    def _data(self) -> Any:
        """Return the evaluation data, made once."""
        if self._dataset is None:
            self._dataset = self._recipe.eval_dataset()
        return self._dataset
