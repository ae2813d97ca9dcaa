"""TrainedRun: what a run in a notebook returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from lockstep.recipe import Recipe
    from lockstep.report.collect import FinishedRun


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedRun:
    """A run that ended well."""

    folder: Path
    """The run folder, as `lockstep run` makes it: for `lockstep report`, checkpoints and weights."""
    losses: tuple[float, ...]
    """The loss of each step, over all workers."""
    metrics: Mapping[str, float | None]
    """Of the last evaluation, by name; None for one that is not a finite number."""
    evaluations: tuple[tuple[int, Mapping[str, float | None]], ...]
    """Every evaluation: the steps done before it, and its metrics."""
    digest: str
    """Of the trained state: equal digests are equal bits."""
    summary: str
    """What `lockstep run` says at the end."""
    _recipe: Callable[[], Recipe] = field(repr=False)

    @cached_property
    def model(self) -> nn.Module:
        """The plain model with the trained weights, in this process, on the CPU; made when it is first asked for."""
        import torch
        from safetensors.torch import load_file

        from lockstep.train.weights import NAME

        with torch.random.fork_rng(devices=[]):  # making a model draws random numbers, and the kernel's are the user's
            model = self._recipe().model()
        model.load_state_dict(load_file(self.folder / NAME))
        return model

    def __repr__(self) -> str:
        return self.summary


def trained_run(run: FinishedRun, recipe: Callable[[], Any], *, of_cells: bool) -> TrainedRun:
    """Return what a finished run folder holds; what cells define has no command line that gives its digest again."""
    from lockstep.report.render import run_lines

    lines = run_lines(run)
    return TrainedRun(
        folder=run.folder,
        losses=run.losses,
        metrics=dict(run.result.metrics),
        evaluations=tuple((line.steps, dict(line.metrics)) for line in run.evaluations),
        digest=run.result.digest,
        summary="\n".join(lines[:-1] if of_cells else lines),
        _recipe=recipe,
    )
