"""Recipe: what is trained."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.errors import BadInput, nearest
from lockstep.lanes.schedule import check_lanes, steps_per_epoch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from lockstep.events import EpochDone, StepDone


class Loss(NamedTuple):
    """A sum and its weight: the number of samples, tokens, or whatever the loss counts."""

    total: Tensor
    """The sum over the batch, with its graph."""
    weight: float | Tensor
    """What the sum over all lanes is divided by, as a sum over all lanes."""


LossFunction = Callable[["nn.Module", Any], "Tensor | Loss"]
Metrics = Callable[["nn.Module", Any], Mapping[str, "float | Tensor | Loss"]]
OptimizerFactory = Callable[[Iterable["nn.Parameter"]], "Optimizer"]
LayerList = Callable[["nn.Module"], "Sequence[Any]"]
ScheduleFactory = Callable[["Optimizer"], "LRScheduler"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, independent of the number of workers."""

    model: Callable[[], nn.Module]
    """Makes the model; called after the seed is set."""
    data: Any
    """A dataset with `__len__` and `__getitem__`, a stream with `__iter__`, or a function or class that makes one."""
    loss: LossFunction
    """`loss(model, batch)`: a mean over the batch, or `Loss(total, weight)`."""
    optimizer: OptimizerFactory
    """Makes the optimizer for the given parameters."""
    global_batch: int
    """Samples per optimizer step, over all workers."""
    lanes: int | None = None
    """Fixed slices of the global batch; None: as many as workers."""
    epochs: int = 1
    """Passes over the data."""
    steps: int | None = None
    """Steps to train, in place of `epochs`."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is short; a DataLoader's own `drop_last` counts too."""
    evaluate: Metrics | None = None
    """`evaluate(model, batch)`: named means over the batch, or `Loss(total, weight)` each."""
    eval_data: Any = None
    """What to evaluate on, like `data`; None: the training data."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a list of samples; None: torch's default."""
    clip: float | None = None
    """Scale the gradient so that its global norm is at most this; None: do not clip."""
    schedule: ScheduleFactory | None = None
    """Makes a learning-rate schedule for the optimizer; it advances once per step."""
    stages: LayerList | None = None
    """Lists the model's layers (modules, or small functions) in the order of their calls, for strategies that cut the
    model; None: its `nn.Sequential`, or its chain of child modules."""
    seed: int = 0
    """Of weights, order of samples, dropout and augmentation."""
    on_step: Callable[[StepDone], None] | None = None
    """Called on rank 0 after each step of `lockstep run`, with its numbers; it changes nothing of the training."""
    on_epoch: Callable[[EpochDone], None] | None = None
    """Called on rank 0 after each pass over the data of `lockstep run`, with its numbers."""
    name: str = ""
    """Its name in reports; by default that of the file or of the built-in recipe."""

    def __new__(cls, *_: Any, **given: Any) -> Recipe:
        """Refuse names that a recipe does not have, and missing ones, in words that help."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                other = f"; did you mean {OTHER_NAMES[name]!r}?" if name in OTHER_NAMES else nearest(name, known)
                raise BadInput(f"Recipe has no field {name!r}{other}")
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in given]
        if given and missing:
            raise BadInput(f"Recipe(...) lacks {', '.join(missing)}: every recipe needs {', '.join(_required(cls))}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if hasattr(self.model, "named_parameters") and not isinstance(self.model, type):
            raise BadInput(
                f"Recipe(model=...) is {kind_of(self.model)}, expected a function or class that makes it, so that its "
                "weights follow from the seed: pass model=lambda: Net(...)"
            )
        for field in ("model", "loss", "optimizer"):
            if not callable(getattr(self, field)):
                raise BadInput(
                    f"Recipe({field}=...) must be a function, found {kind_of(getattr(self, field))}: pass a function, "
                    f"e.g. {field}={_EXAMPLES[field]}"
                )
        for field in ("on_step", "on_epoch"):
            value = getattr(self, field)
            if value is not None and not callable(value):
                raise BadInput(f"Recipe({field}=...) must be a function of one event, found {kind_of(value)}")
        if self.stages is not None and not callable(self.stages):
            raise BadInput(
                f"Recipe(stages=...) must be a function of the model, found {kind_of(self.stages)}: pass e.g. "
                "stages=lambda model: [model.first, model.second]"
            )
        for field in ("global_batch", "epochs"):
            if not isinstance(getattr(self, field), int) or getattr(self, field) < 1:
                raise BadInput(f"found Recipe({field}={getattr(self, field)!r}), expected a whole number from 1 up")
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise BadInput(f"found Recipe(steps={self.steps!r}), expected a whole number from 1 up")
        if not isinstance(self.seed, int) or not -(2**63) <= self.seed < 2**63:
            raise BadInput(f"found Recipe(seed={self.seed!r}), expected a whole number of at most 63 bits")

    def override(self, **changes: Any) -> Recipe:
        """Return a copy with the given fields changed; None leaves a field unchanged."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def dataset(self) -> Any:
        """Return the training data, checked."""
        return _dataset(self.data, "data")

    def eval_dataset(self) -> Any:
        """Return the evaluation data, checked."""
        return self.dataset() if self.eval_data is None else _dataset(self.eval_data, "eval_data")


OTHER_NAMES = {
    "batch_size": "global_batch",
    "batch": "global_batch",
    "train_data": "data",
    "dataset": "data",
    "train_dataset": "data",
    "val_data": "eval_data",
    "eval_dataset": "eval_data",
    "criterion": "loss",
    "loss_fn": "loss",
    "metrics": "evaluate",
    "scheduler": "schedule",
    "lr_scheduler": "schedule",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "max_steps": "steps",
    "num_steps": "steps",
    "collate_fn": "collate",
    "max_norm": "clip",
    "clip_grad_norm": "clip",
    "accumulation_steps": "lanes",
    "gradient_accumulation_steps": "lanes",
}
"""What other trainers call the fields of a recipe."""


def _required(recipe: type[Recipe]) -> list[str]:
    return [field.name for field in fields(recipe) if field.default is MISSING]


_EXAMPLES = {"model": "Net", "loss": "my_loss", "optimizer": "lambda ps: AdamW(ps, lr=3e-4)"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers that follow from a recipe and a number of workers."""

    samples: int | None
    """How many samples an epoch has; None for a stream that does not say."""
    lanes: int
    """How many slices a global batch has."""
    epoch_steps: int | None
    """Steps of one epoch; None for a stream that does not say how many samples it has."""
    steps: int
    """Steps of the whole run."""


def plan(
    recipe: Recipe, *, workers: int, samples: int | None, steps: int | None = None, replicas: int | None = None
) -> Plan:
    """Check that a recipe can be trained on so many workers, and count its steps.

    The lanes are shared out to replicas: to the workers, unless the model is cut.
    """
    lanes = workers if recipe.lanes is None else recipe.lanes
    check_lanes(lanes, workers if replicas is None else replicas, recipe.global_batch)
    if samples == 0:
        raise BadInput("the training data is empty: Recipe(data=...) has length 0, expected at least one global batch")
    if samples is not None and recipe.global_batch > samples:
        raise BadInput(
            f"the global batch of {recipe.global_batch} is larger than the data ({samples} samples): "
            f"use --global-batch {max(lanes, samples // lanes * lanes)} or less, or more data"
        )
    steps = recipe.steps if steps is None else steps
    if steps is not None and steps < 1:
        raise BadInput(f"found --steps {steps}, expected at least 1")
    if samples is None:
        if steps is None:
            raise BadInput(
                "the training data is a stream without __len__, so the length of an epoch is unknown: give --steps N, "
                "or steps=N in the recipe, or add __len__, the number of samples of an epoch"
            )
        return Plan(samples=None, lanes=lanes, epoch_steps=None, steps=steps)
    epoch_steps = steps_per_epoch(samples, recipe.global_batch, drop_last=recipe.drop_last)
    return Plan(samples=samples, lanes=lanes, epoch_steps=epoch_steps, steps=steps or epoch_steps * recipe.epochs)


def _dataset(source: Any, field: str) -> Any:
    dataset = source
    if isinstance(source, type) or (callable(source) and not hasattr(source, "__getitem__") and not _is_stream(source)):
        try:
            dataset = source()
        except BadInput:
            raise
        except Exception as error:
            trace = "".join(traceback.format_exception(error)).rstrip()
            raise BadInput(f"Recipe({field}=...) raised an error while it made the data:\n{trace}") from error
    # A stock DataLoader, recognised without importing torch.
    loader = hasattr(dataset, "dataset") and hasattr(dataset, "collate_fn")
    if loader or _is_stream(dataset) or (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
        return dataset
    once = (
        ". It can be read only once: pass an object whose __iter__ begins anew" if hasattr(dataset, "__next__") else ""
    )
    raise BadInput(
        f"Recipe({field}=...) is {kind_of(dataset)}, expected a dataset with __len__ and __getitem__, a stream with "
        f"__iter__ (such as an IterableDataset), or a function or class that makes one{once}"
    )


def _is_stream(dataset: Any) -> bool:
    """Say whether samples can be read one after another, again in each epoch; torch's stream has an empty getitem."""
    torch_stream = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    again = hasattr(dataset, "__iter__") and not hasattr(dataset, "__next__")
    return again and (torch_stream or not hasattr(dataset, "__getitem__"))


def kind_of(value: object) -> str:
    """Return what a value is, in words."""
    return "None" if value is None else f"a {type(value).__name__}"
