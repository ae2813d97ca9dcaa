"""The best value of one metric so far: what is better, and for how many evaluations nothing was. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from lockstep.errors import BadInput, nearest
from lockstep.train.schema.scalars import Count

LOWER_IS_BETTER = frozenset({"loss", "error", "perplexity", "ppl", "nll", "mse", "rmse", "mae", "wer", "cer"})
"""A metric with one of these words in its name is best when it is lowest; any other when it is highest."""
DIRECTIONS = {"min": True, "max": False}


@dataclass(frozen=True, kw_only=True)
class BestMetric:
    """The best evaluation of a run so far, by one metric; it travels in the run's checkpoints."""

    metric: str
    """Its name, as `evaluate` returns it."""
    lowest: bool
    """Whether the lowest value is the best; else the highest is."""
    value: float | None = None
    """The best so far; None before the first finite one."""
    steps: Count = 0
    """Steps done when it was evaluated."""
    stale: Count = 0
    """Evaluations since then."""

    def after(self, value: float, steps: int) -> BestMetric:
        """Return what holds after one more evaluation; a value that is no better only counts as stale."""
        if not math.isfinite(value) or not self._improves(value):
            return replace(self, stale=self.stale + 1)
        return replace(self, value=value, steps=steps, stale=0)

    def same_target(self, other: BestMetric | None) -> bool:
        """Say whether another one is of the same metric, in the same direction."""
        return other is not None and (other.metric, other.lowest) == (self.metric, self.lowest)

    def why_stopped(self, steps: int) -> str:
        """Say why a run that waited for it in vain ended after so many steps."""
        often = "1 evaluation" if self.stale == 1 else f"{self.stale} evaluations"
        return f"{self.metric} has not improved for {often}, after {steps} steps"

    def _improves(self, value: float) -> bool:
        if self.value is None:
            return True
        return value < self.value if self.lowest else value > self.value


def wanted_metric(text: str) -> BestMetric:
    """Read what `--keep-best` says: a metric's name, with `:min` or `:max` where its name does not tell."""
    name, _, direction = text.rpartition(":")
    if not name or direction not in DIRECTIONS:
        name, direction = text, ""
    if not name.strip():
        raise BadInput("--keep-best is empty: give the name of a metric, e.g. --keep-best accuracy")
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return BestMetric(metric=name, lowest=DIRECTIONS.get(direction, bool(words & LOWER_IS_BETTER)))


def check_metric(wanted: BestMetric, names: list[str]) -> None:
    """Refuse a metric that the evaluation does not return."""
    if wanted.metric not in names:
        there = ", ".join(names) or "none"
        raise BadInput(
            f"--keep-best {wanted.metric}: the recipe's evaluate returns {there}{nearest(wanted.metric, names)}; "
            "give one of these"
        )
