"""A user's optimizer on slices of flat weights: each worker keeps the state of what it updates, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from lockstep.errors import BadInput
from lockstep.recipe import OptimizerFactory
from lockstep.torch_compat.optimizers import begin_anew

# Their update of an element depends on that element alone, so any slicing of a flat tensor gives the same bits.
ELEMENTWISE: tuple[type[Optimizer], ...] = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.RMSprop,
    optim.Adagrad,
    optim.Adadelta,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Rprop,
)
CHUNK = 1 << 17
"""Elements updated at a time: weights, gradients and state of a chunk stay in the cache between the passes."""


@dataclass(frozen=True)
class Chunk:
    """A run of elements of one section, updated as one tensor."""

    section: int
    start: int
    weight: nn.Parameter

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + self.weight.numel()


def make_optimizer(factory: OptimizerFactory, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """Let the user's function make the optimizer, and refuse what cannot be run in steps of lanes."""
    made = factory(list(parameters))
    if not isinstance(made, Optimizer):
        raise BadInput(f"Recipe(optimizer=...) returned a {type(made).__name__}, not a torch.optim.Optimizer")
    if isinstance(made, optim.LBFGS):
        raise BadInput("LBFGS evaluates the loss several times in a step, which no strategy here does: use another")
    known = {id(parameter) for parameter in parameters}
    given = [parameter for group in made.param_groups for parameter in group["params"]]
    if {id(parameter) for parameter in given} != known:
        raise BadInput(
            "the optimizer must update exactly the parameters it is given: freeze others by requires_grad=False"
        )
    return made


def group_keys(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> list[int]:
    """Return the parameter group of each parameter."""
    found = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [found[id(parameter)] for parameter in parameters]


def why_replicated(optimizer: Optimizer) -> str:
    """Return why an optimizer may not run on slices; empty if it may."""
    if type(optimizer) in ELEMENTWISE:
        return ""
    return f"{type(optimizer).__name__} may look at whole tensors"


def slice_optimizer(
    optimizer: Optimizer, groups: Sequence[int], weights: Sequence[Tensor], parts: Sequence[range]
) -> list[Chunk]:
    """Point an optimizer that has done no step at this worker's slices of the flat weights, in chunks.

    The optimizer stays the user's own object with its groups and settings, so a schedule that holds it works on.
    """
    chunks: list[Chunk] = []
    members: dict[int, list[nn.Parameter]] = {number: [] for number in range(len(optimizer.param_groups))}
    for section, (group, flat, part) in enumerate(zip(groups, weights, parts, strict=True)):
        for start in range(part.start, part.stop, CHUNK):
            chunk = Chunk(section, start, nn.Parameter(flat[start : min(start + CHUNK, part.stop)]))
            chunks.append(chunk)
            members[group].append(chunk.weight)
    for number, group_fields in enumerate(optimizer.param_groups):
        group_fields["params"] = members[number]
    begin_anew(optimizer)
    return chunks


def hand_over(chunks: Sequence[Chunk], section: int, part: range, gradient: Tensor) -> None:
    """Give the chunks of one section their gradients: views of the reduced slice, nothing is copied."""
    for chunk in chunks:
        if chunk.section == section:
            chunk.weight.grad = gradient[chunk.start - part.start : chunk.stop - part.start]


def state_names(optimizer: Optimizer, chunks: Sequence[Chunk]) -> dict[int, dict[str, bool]]:
    """Return, per section, the names of the optimizer's state and whether each has a value per element."""
    found: dict[int, dict[str, bool]] = {}
    for chunk in chunks:
        for key, value in optimizer.state.get(chunk.weight, {}).items():
            if isinstance(value, Tensor):
                found.setdefault(chunk.section, {})[key] = value.numel() == chunk.weight.numel() and value.dim() > 0
    return found


def state_runs(optimizer: Optimizer, chunks: Sequence[Chunk], section: int, key: str) -> list[tuple[int, Tensor]]:
    """Return this worker's part of one state tensor of a section: flat tensors with their positions in it."""
    return [(c.start, optimizer.state[c.weight][key].flatten()) for c in chunks if c.section == section]


def put_state(chunk: Chunk, first: int, flat: Tensor, held: Tensor) -> None:
    """Copy the elements of a tensor, which begins at element `first` of the section, into a chunk's state."""
    start, stop = max(chunk.start, first), min(chunk.stop, first + flat.numel())
    if start < stop:
        held[start - chunk.start : stop - chunk.start].copy_(flat[start - first : stop - first])


def scalar_state(optimizer: Optimizer, chunks: Sequence[Chunk], section: int, key: str) -> Tensor:
    """Return a state that is one number for the whole section, e.g. the step count."""
    value = next(optimizer.state[chunk.weight][key] for chunk in chunks if chunk.section == section)
    assert isinstance(value, torch.Tensor)
    return value
