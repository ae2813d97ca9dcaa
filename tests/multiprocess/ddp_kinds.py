"""Kinds of models in the tests of our DistributedDataParallel: many dtypes, recomputed, compiled."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lockstep.nn import DistributedDataParallel as OurDDP
from tests.devices import own_device
from tests.multiprocess.ddp_models import WIDTH, Net, Numbers, backward, batch, both, gradient_of, numbers, train


class Mixed(nn.Module):
    """Parameters of five dtypes, one of which is stored channels last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kinds = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(40, 40).to(kind)) for kind in kinds])
        self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.conv = nn.Conv2d(3, 4, 3)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.to(own_device())

    def forward(self, x: Tensor) -> Tensor:
        """Use each."""
        total: Tensor = (self.turn * x[0, 0]).abs().sum() + self.conv(x.new_ones(1, 3, 5, 5) * x[0, 0]).square().mean()
        for weight in self.weights:
            total = total + (weight.float() * x[0, 1]).square().mean()
        return total


def mixed_dtypes(rank: int, size: int, exact: bool) -> list[tuple[str, float]]:
    """Return how far each gradient is from the mean of the ranks' own, and its memory format."""
    model = OurDDP(Mixed(), exact=exact)
    backward(model(batch(rank, 0)))
    plain = Mixed()
    found = []
    means = {name: torch.zeros_like(p, dtype=torch.complex128) for name, p in plain.named_parameters()}
    for other in range(size):
        plain.zero_grad()
        backward(plain(batch(other, 0)))
        for name, p in plain.named_parameters():
            means[name] += gradient_of(p).to(torch.complex128) / size
    for name, p in model.module.named_parameters():
        gradient = gradient_of(p)
        assert gradient.dtype == p.dtype
        assert gradient.stride() == p.stride()
        error = (gradient.to(torch.complex128) - means[name]).abs().max() / means[name].abs().max()
        found.append((str(p.dtype), float(error)))
    return found


class Checkpointed(nn.Module):
    """One layer, run once or several times, each time recomputed in backward."""

    def __init__(self, reentrant: bool, times: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant, self.times = reentrant, times
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.to(own_device())

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        x = self.first(x)
        for _ in range(self.times):
            x = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return x


def checkpointed(rank: int, size: int, reentrant: bool, times: int, options: dict[str, Any]) -> tuple[Numbers, Numbers]:
    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Checkpointed(reentrant, times), **options)
        train(model, rank)
        return numbers(model)

    return both(run)


def checkpointed_by_mistake(rank: int, size: int) -> None:
    train(OurDDP(Checkpointed(reentrant=True)), rank)


def compiled(rank: int, size: int, compiler: str, outside: bool) -> tuple[Numbers, Numbers]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        plain, net = OurDDP(Net()), Net()
        inner: Any = torch.compile(net, backend=compiler)
        wrapped = OurDDP(inner)
        model: Any = torch.compile(OurDDP(net), backend=compiler) if outside else wrapped
        train(plain, rank, steps=3)
        train(model, rank, steps=3)
        assert all("module._orig_mod." in key for key in wrapped.state_dict())
        return numbers(plain.module), numbers(net)
