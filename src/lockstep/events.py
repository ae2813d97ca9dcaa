"""What a run tells those who follow it: plain numbers, with nothing in them that could change the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """What every event tells of its run."""

    folder: Path
    """The run folder."""
    recipe: str
    """The name of the recipe."""
    settings: Mapping[str, Any]
    """Those of the run, by name: strategy, workers, lanes, seed, ..."""
    metrics: Mapping[str, float]
    """Of the evaluation after this step; empty if there was none."""
    last: bool
    """Whether this was the run's last step."""


@dataclass(frozen=True, kw_only=True)
class StepDone(RunEvent):
    """A step was done: what `Recipe(on_step=...)` is called with."""

    step: int
    """Counted from 0 over the whole run."""
    steps: int
    """Of the whole run, as asked for."""
    epoch: int
    """The pass over the data."""
    loss: float
    """Over all lanes where the strategy tells every rank, else over those of rank 0 (stock strategies)."""
    learning_rates: tuple[float, ...]
    """That this step was done with, one for each group of the optimizer."""
    seconds: float
    """Of this step on rank 0."""


@dataclass(frozen=True, kw_only=True)
class EpochDone(RunEvent):
    """A pass over the data was done: what `Recipe(on_epoch=...)` is called with."""

    epoch: int
    """Counted from 0."""
    steps: int
    """Done so far, over the whole run."""
    loss: float
    """The mean over the epoch's steps; after a resume, over those since."""
    seconds: float
    """Of these steps on rank 0."""
