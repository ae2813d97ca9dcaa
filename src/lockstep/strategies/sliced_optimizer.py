"""A user's optimizer on slices of flat weights: each worker keeps only the state of the elements that it updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from lockstep.errors import BadInput
from lockstep.recipe import OptimizerFactory
from lockstep.torch_compat.optimizers import begin_anew

# Their update of an element depends only on that element, so any slicing of a flat tensor gives the same bits.
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
"""Elements that are updated at a time: weights, gradients and state of a chunk stay in the cache between passes."""


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
    """Return the optimizer that the user's function makes; raise if it cannot be used with lanes."""
    optimizer = factory(list(parameters))
    if not isinstance(optimizer, Optimizer):
        raise BadInput(
            f"Recipe(optimizer=...) returned a {type(optimizer).__name__}, expected a torch.optim.Optimizer: return one"
        )
    if isinstance(optimizer, optim.LBFGS):
        raise BadInput(
            "LBFGS evaluates the loss several times in a step, which strategies do not support: use another optimizer"
        )
    known = {id(parameter) for parameter in parameters}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if {id(parameter) for parameter in given} != known:
        raise BadInput(
            "the optimizer must update exactly the parameters that it gets: freeze others with requires_grad=False"
        )
    return optimizer


def group_keys(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> list[int]:
    """Return the parameter group of each parameter."""
    numbers = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [numbers[id(parameter)] for parameter in parameters]


def why_replicated(optimizer: Optimizer) -> str:
    """Return why an optimizer may not run on slices; empty if it may."""
    if type(optimizer) in ELEMENTWISE:
        return ""
    return f"{type(optimizer).__name__} may look at whole tensors"


def slice_optimizer(
    optimizer: Optimizer, groups: Sequence[int], slices: Sequence[Tensor], stretches: Sequence[Sequence[range]]
) -> list[Chunk]:
    """Let an optimizer that has done no step update this worker's slices, in chunks.

    `stretches` says where the slices lie, and which parts of each have a gradient in one piece.

    It stays the user's own object with its groups and settings, so a schedule that refers to it keeps working.
    """
    chunks: list[Chunk] = []
    members: dict[int, list[nn.Parameter]] = {number: [] for number in range(len(optimizer.param_groups))}
    for section, (group, own, parts) in enumerate(zip(groups, slices, stretches, strict=True)):
        first = parts[0].start
        for start, stop in ((at, min(at + CHUNK, part.stop)) for part in parts for at in part[::CHUNK]):
            chunk = Chunk(section, start, nn.Parameter(own[start - first : stop - first]))
            chunks.append(chunk)
            members[group].append(chunk.weight)
    for number, group_fields in enumerate(optimizer.param_groups):
        group_fields["params"] = members[number]
    begin_anew(optimizer)
    return chunks


class GradientRun(NamedTuple):
    """A run of elements of a section's reduced gradient."""

    section: int
    start: int
    values: Tensor
    """Flat."""

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + self.values.numel()


def set_gradients(chunks: Sequence[Chunk], runs: Sequence[GradientRun]) -> None:
    """Set the chunks' gradients to views of the reduced gradient; nothing is copied. Both are in the same order."""
    following = iter(runs)
    run = next(following, None)
    for chunk in chunks:
        while run is not None and (run.section, run.stop) < (chunk.section, chunk.stop):
            run = next(following, None)
        assert run is not None
        chunk.weight.grad = run.values[chunk.start - run.start : chunk.stop - run.start]


def step_chunks(optimizer: Optimizer, group: int, chunks: Sequence[Chunk]) -> None:
    """Let an optimizer update some chunks of one of its groups, and nothing else; their gradients are set."""
    every, fields = optimizer.param_groups, optimizer.param_groups[group]
    members = fields["params"]
    try:
        optimizer.param_groups, fields["params"] = [fields], [chunk.weight for chunk in chunks]
        optimizer.step()
    finally:
        optimizer.param_groups, fields["params"] = every, members


def state_names(optimizer: Optimizer, chunks: Sequence[Chunk]) -> dict[int, dict[str, bool]]:
    """Return, per section, the names of the optimizer's state and whether each has a value per element."""
    names: dict[int, dict[str, bool]] = {}
    for chunk in chunks:
        for key, value in optimizer.state.get(chunk.weight, {}).items():
            if isinstance(value, Tensor):
                names.setdefault(chunk.section, {})[key] = value.numel() == chunk.weight.numel() and value.dim() > 0
    return names


def state_runs(optimizer: Optimizer, chunks: Sequence[Chunk], section: int, key: str) -> list[tuple[int, Tensor]]:
    """Return this worker's part of one state tensor of a section: flat tensors with their positions in it."""
    return [(c.start, optimizer.state[c.weight][key].flatten()) for c in chunks if c.section == section]


def copy_state(chunk: Chunk, first: int, flat: Tensor, state: Tensor) -> None:
    """Copy the elements of a tensor, which begins at element `first` of the section, into a chunk's state."""
    start, stop = max(chunk.start, first), min(chunk.stop, first + flat.numel())
    if start < stop:
        state[start - chunk.start : stop - chunk.start].copy_(flat[start - first : stop - first])


def scalar_state(optimizer: Optimizer, chunks: Sequence[Chunk], section: int, key: str) -> Tensor:
    """Return a state that is one number for the whole section, such as the step count."""
    value = next(optimizer.state[chunk.weight][key] for chunk in chunks if chunk.section == section)
    assert isinstance(value, torch.Tensor)
    return value
