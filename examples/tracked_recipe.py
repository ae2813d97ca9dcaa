"""The recipe of my_recipe.py, followed in Weights & Biases: `lockstep run examples/tracked_recipe.py`.

Nothing leaves this machine: the run is kept in `wandb/`, and `wandb sync` sends it when you want. With
WANDB_MODE=online it is sent while it trains. Another tracker takes the place of these few calls in the same way.
"""

import os
from dataclasses import replace

import wandb
from my_recipe import recipe as untracked  # the folder of a recipe is on the path

from lockstep import Recipe, StepDone


class Tracker:
    """Hands on what a run tells; made in every rank, called in rank 0 alone."""

    def __init__(self) -> None:
        self.run: wandb.Run | None = None

    def step(self, event: StepDone) -> None:
        """Hand on one step; the first call opens the run, the last one closes it."""
        if self.run is None:
            config = {name: value for name, value in event.settings.items() if value is not None}
            self.run = wandb.init(
                project="lockstep",
                name=event.folder.name,
                config=config,
                mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
            )
        values = {"loss": event.loss, "learning_rate": event.learning_rates[0], "step_seconds": event.seconds}
        metrics = {f"evaluation/{name}": value for name, value in event.metrics.items()}
        self.run.log({**values, **metrics}, step=event.step)
        if event.last:
            self.run.finish()


def recipe() -> Recipe:
    """Return the recipe with a tracker."""
    return replace(untracked(), on_step=Tracker().step)
