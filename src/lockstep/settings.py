"""Settings: what a user can set, as one frozen value that goes whole from the command line to the strategy.

To add an option, add a field here (or, if only the built-in loop heeds it, to `RunSpec` in train/spec.py) and use it.
With an `Option` the field is an option of the command line too, under its own name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Self

from lockstep.errors import BadInput, nearest
from lockstep.registry import BASELINE, describe


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field is asked for on the command line; where it is not given, the field's own default holds."""

    help: str
    """What it sets."""
    default: str = ""
    """What holds where it is not given, in words, where the field's default does not say it."""
    off: str = ""
    """The flag that turns it off, of a field that is true by default."""
    least: int | None = None
    """The least number that is taken."""
    reads: type | None = None
    """What is read from the command line, if that is not the field's type: a path, or one of several words."""
    only: str = ""
    """The one command that has it; empty: every command that trains."""
    bits: bool = False
    """Whether the trained bits depend on it: then it is in the line that gives them again."""


def option_of(hint: Any) -> Option | None:
    """Return the `Option` of a field, by its type as `get_type_hints` gives it."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Option)), None)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is trained, in any loop: what a trainer and its strategy heed."""

    strategy: Annotated[str, Option(help="{strategies}.", default="by workers", only="run")] = BASELINE
    workers: Annotated[int, Option(help="How many workers.", only="run")] = 1
    lanes: Annotated[
        int | None,
        Option(
            help="Fixed slices of the global batch; more lanes than workers is accumulation.",
            default="the recipe's, else the workers",
            bits=True,
        ),
    ] = None
    stages: Annotated[
        int | None,
        Option(help="Into how many parts the model is cut (layers, pipeline).", default="the workers", least=1),
    ] = None
    cut: Annotated[
        str, Option(help="Where: auto, or the first layer of each stage but the first, by number or name, 3,7.")
    ] = "auto"
    stage_memory: Annotated[
        str | None,
        Option(
            help="The most memory of a stage, e.g. 2GiB: weights, gradients, optimizer state, activations.",
            default="no limit",
        ),
    ] = None
    pipeline_schedule: Annotated[str, Option(help="Order of lanes in a pipeline: 1f1b, zero-bubble or fill-drain.")] = (
        "1f1b"
    )
    seed: Annotated[int | None, Option(help="Of weights, order and dropout.", default="the recipe's", bits=True)] = None
    sync_batchnorm: Annotated[
        bool, Option(help="BatchNorm over all workers; results then depend on their number.", bits=True)
    ] = False
    exact: Annotated[
        bool,
        Option(
            help="A running sum per worker; the bits then depend on their number.",
            off="--inexact",
            only="run",
            bits=True,
        ),
    ] = True
    measure: Annotated[bool, Option(help="Note only time and loss: no parts, no fingerprints.", off="--no-measure")] = (
        True
    )

    @property
    def stage_count(self) -> int:
        """Into how many parts the model is cut: all workers, where nothing else is asked for."""
        return (self.stages or self.workers) if describe(self.strategy).staged else 1

    @property
    def replicas(self) -> int:
        """How many whole models there are; they share out the lanes."""
        return self.workers // self.stage_count

    def changed(self, changes: dict[str, Any]) -> Self:
        """Return the settings with some fields changed; refuse a name that is none of them."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise BadInput(f"there is no setting {name!r}{nearest(name, known)}")
        return replace(self, **changes)
