"""What the tests of our DistributedDataParallel train, and how: with torch's class and with ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lockstep.nn import DistributedDataParallel as OurDDP
from tests.devices import ON_CPU, own_device

Numbers = list[float]
WIDTH = 12


class Net(nn.Module):
    """Tied weights, buffers of two dtypes, layers that a forward may leave out."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(WIDTH, 200)
        self.norm = nn.BatchNorm1d(200)
        self.middle = nn.Linear(200, 200)
        self.again = nn.Linear(200, 200)
        self.again.weight = self.middle.weight
        self.last = nn.Linear(200, 3)
        self.spare = nn.Linear(200, 3)
        self.to(own_device())

    def forward(self, x: Tensor, spare: bool | None = None) -> Tensor:
        """Use both last layers, or one of them."""
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.again(torch.relu(self.middle(x))))
        if spare is None:
            return torch.add(self.last(x), self.spare(x))
        out: Tensor = self.spare(x) if spare else self.last(x)
        return out


def batch(rank: int, step: int, rows: int = 6) -> Tensor:
    """Return a batch that only this rank and step have."""
    made = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    return made.to(own_device())


def numbers(model: nn.Module) -> Numbers:
    """Return a model's weights and buffers."""
    return [float(x) for t in model.state_dict().values() for x in t.double().flatten()[:50]]


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def hooks(model: nn.Module) -> int:
    """Return how many hooks wait for the gradients of a model's parameters."""
    return sum(len(p._post_accumulate_grad_hooks or {}) for p in model.parameters())


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def both(run: Callable[[type[Any]], Any]) -> tuple[Any, Any]:
    """Do something with torch's class and with ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        return run(TorchDDP), run(OurDDP)


def read_flags(model: nn.Module, rank: int) -> None:
    """Have the flags of the last backward read; on devices the next forward does that, as the host must not wait."""
    if not ON_CPU:
        model(batch(rank, 99))


def train(model: nn.Module, rank: int, *, steps: int = 4, set_to_none: bool = True, **extra: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        backward(model(batch(rank, step), **extra).square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
