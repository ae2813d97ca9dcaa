"""Who holds what: a strategy says for which elements of the plain state this process answers.

[Note: one answer]
The holdings of all processes together are the plain state (parameters, buffers and optimizer state under the plain
model's names), each element exactly once, also where several processes have a copy of it. Everything that reads the
state (digest, fingerprints, checkpoints, final weights) is built on this alone, and so knows nothing of strategies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

OPTIMIZER = "optimizer/"


class Holding(NamedTuple):
    """A run of elements of one plain tensor; see [Note: one answer]."""

    name: str
    """As the digest has it: `parameter/...`, `buffer/...` or `optimizer/<parameter>/<key>`."""
    dtype: torch.dtype
    """Of its elements."""
    shape: tuple[int, ...]
    """Of the plain tensor."""
    start: int
    """The first element, counted within the tensor in row-major order."""
    parts: tuple[Tensor, ...]
    """The elements, as flat tensors one after another."""

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + sum(part.numel() for part in self.parts)

    def read(self, start: int, stop: int) -> Tensor:
        """Return some of the elements, by their positions in the tensor; a view where they lie in one part."""
        ends = itertools.accumulate((part.numel() for part in self.parts), initial=self.start)
        pieces = list(overlaps(start, stop, list(zip(ends, self.parts, strict=False))))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def whole(name: str, tensor: Tensor) -> Holding:
    """Return a tensor that this process holds all of."""
    return Holding(name, tensor.dtype, tuple(tensor.shape), 0, (tensor.detach().contiguous().reshape(-1),))


def model_holdings(model: nn.Module) -> list[Holding]:
    """Return the parameters and buffers of a model that this process holds all of."""
    return [
        *(whole(f"parameter/{name}", parameter) for name, parameter in model.named_parameters()),
        *(whole(f"buffer/{name}", buffer) for name, buffer in model.named_buffers()),
    ]


def plain_holdings(model: nn.Module, optimizer: Optimizer) -> list[Holding]:
    """Return the state of a plain model and optimizer that this process holds all of."""
    held = model_holdings(model)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensor = value if isinstance(value, Tensor) else torch.tensor(value)
                held.append(whole(state_name(name, key), tensor))
    return held


def state_name(parameter: str, key: str) -> str:
    """Return what the optimizer's state of a parameter is called."""
    return f"{OPTIMIZER}{parameter}/{key}"


def split_state_name(name: str) -> tuple[str, str] | None:
    """Return the parameter and the key of a tensor of the optimizer's state; None for another tensor."""
    if not name.startswith(OPTIMIZER):
        return None
    parameter, _, key = name.removeprefix(OPTIMIZER).rpartition("/")
    return parameter, key


def model_only(holdings: Iterable[Holding]) -> list[Holding]:
    """Leave out the optimizer's state."""
    return [one for one in holdings if split_state_name(one.name) is None]


def overlaps(start: int, stop: int, runs: Sequence[tuple[int, Tensor]]) -> Iterator[Tensor]:
    """Yield the parts of flat tensors (each with the position of its first element) that lie in start..stop."""
    for first, tensor in itertools.takewhile(lambda run: run[0] < stop, runs):
        low, high = max(start, first), min(stop, first + tensor.numel())
        if low < high:
            yield tensor[low - first : high - first]
