"""Recipe: what is trained, and how one is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.errors import BadInput, nearest
from lockstep.lanes.schedule import check_lanes, steps_per_epoch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from lockstep.events import EpochDone, StepDone

BUILT_IN = ("cifar100", "mlp", "bytes")


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
                f"Recipe(model=...) is {_kind(self.model)}, expected a function or class that makes it, so that its "
                "weights follow from the seed: pass model=lambda: Net(...)"
            )
        for field in ("model", "loss", "optimizer"):
            if not callable(getattr(self, field)):
                raise BadInput(
                    f"Recipe({field}=...) must be a function, found {_kind(getattr(self, field))}: pass a function, "
                    f"e.g. {field}={_EXAMPLES[field]}"
                )
        for field in ("on_step", "on_epoch"):
            value = getattr(self, field)
            if value is not None and not callable(value):
                raise BadInput(f"Recipe({field}=...) must be a function of one event, found {_kind(value)}")
        if self.stages is not None and not callable(self.stages):
            raise BadInput(
                f"Recipe(stages=...) must be a function of the model, found {_kind(self.stages)}: pass e.g. "
                "stages=lambda model: [model.first, model.second]"
            )
        for field in ("global_batch", "epochs"):
            if not isinstance(getattr(self, field), int) or getattr(self, field) < 1:
                raise BadInput(f"found Recipe({field}={getattr(self, field)!r}), expected a whole number from 1 up")
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
    if steps is not None and steps < 1:
        raise BadInput(f"found --steps {steps}, expected at least 1")
    if samples is None:
        if steps is None:
            raise BadInput(
                "the training data is a stream without __len__, so the length of an epoch is unknown: give --steps N, "
                "or add __len__, the number of samples of an epoch"
            )
        return Plan(samples=None, lanes=lanes, epoch_steps=None, steps=steps)
    epoch_steps = steps_per_epoch(samples, recipe.global_batch, drop_last=recipe.drop_last)
    return Plan(samples=samples, lanes=lanes, epoch_steps=epoch_steps, steps=steps or epoch_steps * recipe.epochs)


def load(reference: str, data: str | None = None) -> Recipe:
    """Load a recipe from `file.py`, `file.py:function` or a built-in name; `data` is passed to its function."""
    path, _, function = reference.partition(":")
    if path in BUILT_IN:
        module, name = importlib.import_module(f"lockstep.recipes.{path}"), path
    elif path.endswith(".py") or "/" in path:
        module, name = _execute(Path(path)), Path(path).stem
    else:
        raise BadInput(f"no recipe called {path!r}{nearest(path, list(BUILT_IN))} (or pass a file, such as train.py)")
    return _call(module, function or "recipe", reference, name, data)


_EXECUTED: set[str] = set()
"""The names of modules that are recipe files; loading another file of the same name replaces one."""


def _hides(name: str, path: Path) -> bool:
    """Say whether a recipe file would take the place of another module; the same file, imported before, is no other."""
    standing = sys.modules.get(name)
    origin = getattr(standing, "__file__", None)
    return standing is not None and (origin is None or Path(origin).resolve() != path.resolve())


def _execute(path: Path) -> ModuleType:
    if not path.is_file():
        problem = "does not exist" if not path.exists() else "is not a file"
        raise BadInput(f"the recipe file {path} {problem}: pass the path of a Python file")
    name, root = module_name(path.resolve())
    if name not in _EXECUTED and _hides(name, path):
        raise BadInput(
            f"the recipe file {path} has the same name as the module {name!r} and would hide it: rename the file"
        )
    # A recipe's classes are pickled by module name for the processes that a rank starts, such as a DataLoader's
    # workers. Those get this process's sys.path, so the module has the name by which they find its file.
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file: a recipe is a file whose name ends in .py")
    try:
        if package := name.rpartition(".")[0]:
            importlib.import_module(package)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        _EXECUTED.add(name)
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"the recipe file {path} raised an error while it was loaded:\n{_trace(error, path)}") from error
    return module


def module_name(path: Path) -> tuple[str, Path]:
    """Return the module name of a recipe file, with its packages, and the folder that contains them."""
    names, root = [path.stem], path.parent
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    return ".".join(names), root


def _call(module: ModuleType, function: str, reference: str, name: str, data: str | None) -> Recipe:
    make = getattr(module, function, None)
    if not callable(make):
        raise BadInput(_no_function(module, reference, function))
    if data is not None and "data" not in inspect.signature(make).parameters:
        raise BadInput(
            f"{reference} does not accept --data: its {function}() has no parameter `data`; add it, or leave --data out"
        )
    try:
        recipe = make() if data is None else make(data=data)
    except BadInput:
        raise
    except Exception as error:
        where = Path(module.__file__ or "")
        raise BadInput(f"{function}() of {reference} raised an error:\n{_trace(error, where)}") from error
    if not isinstance(recipe, Recipe):
        raise BadInput(f"{function}() of {reference} returned {_kind(recipe)}, expected a lockstep.Recipe: return one")
    return recipe if recipe.name else replace(recipe, name=name)


def _no_function(module: ModuleType, reference: str, function: str) -> str:
    """Say that there is no such function, and which there are: those of the file itself, not what it imports."""
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    own = [name for name in functions if getattr(module, name).__module__ == module.__name__]
    text, path = f"{reference} has no function {function}()", reference.partition(":")[0]
    if own and "did you mean" in nearest(function, own):
        text += f"{nearest(function, own)}."
    elif own:
        text += f". Its functions are {', '.join(own)}: if one returns a lockstep.Recipe, name it, as {path}:{own[0]}."
    else:
        text += "."
    defines = "A recipe file defines `def recipe() -> lockstep.Recipe`"
    return f"{text} {defines}; `lockstep init {path}` writes one from a script"


def _trace(error: Exception, path: Path) -> str:
    """Format a traceback from the user's own file on, without the frames of the import system."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((i for i, frame in enumerate(frames) if Path(frame.filename) == path), len(frames) - 1)
    lines = traceback.format_list(frames[own:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


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
        f"Recipe({field}=...) is {_kind(dataset)}, expected a dataset with __len__ and __getitem__, a stream with "
        f"__iter__ (such as an IterableDataset), or a function or class that makes one{once}"
    )


def _is_stream(dataset: Any) -> bool:
    """Say whether samples can be read one after another, again in each epoch; torch's stream has an empty getitem."""
    torch_stream = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    again = hasattr(dataset, "__iter__") and not hasattr(dataset, "__next__")
    return again and (torch_stream or not hasattr(dataset, "__getitem__"))


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
