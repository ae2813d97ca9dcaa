"""The small recipe with evaluations that would leave a trace, if they were let."""

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny  # the folder of a recipe is on the path
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import Dataset

from lockstep import EpochDone, Recipe, StepDone


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Draws from every generator of the process for each sample."""

    def __init__(self) -> None:
        self.samples = tiny.make_data(30)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, label = self.samples[index]
        return inputs + 0.01 * (torch.randn(8) + random.random() + float(np.random.rand())), label


def careless(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
    """Leave the model in another mode, with other statistics, and the generators elsewhere."""
    inputs, labels = batch
    outputs = model(inputs)
    model.train()
    model(torch.cat([inputs, torch.randn(2, 8).to(inputs.device)]) * 100)
    torch.manual_seed(7)
    return {
        "accuracy": (outputs.argmax(1) == labels).float().mean(),
        "loss": nn.functional.cross_entropy(outputs, labels),
    }


def recipe(**changes: Any) -> Recipe:
    return replace(tiny.recipe(), eval_data=Noisy, evaluate=careless, **changes)


def without() -> Recipe:
    return replace(tiny.recipe(), evaluate=None)


class Scripted:
    """Returns one value after another as accuracy, by the number of steps that were done."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __call__(self, model: nn.Module, batch: list[Tensor]) -> dict[str, float]:
        steps = int(model[1].num_batches_tracked)  # type: ignore[index]
        return {"accuracy": self.values[steps], "rest": 0.0}


VALUES = (0.0, 0.1, 0.2, 0.3, 0.9, 0.5, 0.6, 0.7, 0.8, 0.85, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
"""The best is after 4 steps."""


def peaks() -> Recipe:
    return replace(tiny.recipe(), evaluate=Scripted(*VALUES))


def peaks_and_dies() -> Recipe:
    """Rank 1 is gone in step 5, after the best evaluation and one more."""
    calls = 0

    def deadly(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2 * 6 and dist.get_rank() == 1:  # two lanes in each step
            os.kill(os.getpid(), signal.SIGKILL)
        return tiny.loss(model, batch)

    return replace(peaks(), loss=deadly)


def tell(event: StepDone | EpochDone) -> None:
    """Write an event into the run folder, and leave every generator elsewhere."""
    shown = {**vars(event), "folder": event.folder.name, "settings": event.settings["strategy"]}
    with open(event.folder / f"{type(event).__name__}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(shown) + "\n")
    torch.manual_seed(len(shown))
    random.seed(1)
    np.random.seed(1)


def called() -> Recipe:
    def schedule(optimizer: torch.optim.Optimizer) -> MultiStepLR:
        return MultiStepLR(optimizer, [4])

    return replace(recipe(), on_step=tell, on_epoch=tell, schedule=schedule)


def uncalled() -> Recipe:
    return replace(called(), on_step=None, on_epoch=None)


def raising() -> Recipe:
    def fail(event: StepDone) -> None:
        if event.step == 2:
            raise ValueError("the tracker is not there")

    return replace(recipe(), on_step=fail)


def looked_at() -> Recipe:
    """The last callback returns when the event file, as others see it, has a step."""

    def look(event: StepDone) -> None:
        while event.last and not events(event.folder).get("loss"):
            time.sleep(0.1)

    return replace(recipe(), on_step=look)


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard would show of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def simple() -> Recipe:
    return replace(tiny.recipe(), on_step=tell)


def also_by_loss() -> Recipe:
    """The model is called twice with the same arguments."""
    made = simple()

    def evaluate(model: nn.Module, batch: list[Tensor]) -> dict[str, Any]:
        inputs, labels = batch
        right = (model(inputs).argmax(1) == labels).float().mean()
        return {"loss": made.loss(model, batch), "accuracy": right}

    return replace(made, evaluate=evaluate)


def calls_with_other_values() -> Recipe:
    """The model is called with the inputs, and with their mirror image."""

    def evaluate(model: nn.Module, batch: list[Tensor]) -> dict[str, Any]:
        inputs, labels = batch
        return {"accuracy": ((model(inputs) + model(-inputs)).argmax(1) == labels).float().mean()}

    return replace(simple(), evaluate=evaluate)
