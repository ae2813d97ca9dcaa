"""What a rank does in the tests of few hooks: some ordinary steps, one that is different, and ordinary ones again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lockstep.nn import DistributedDataParallel as OurDDP
from tests.devices import own_device
from tests.multiprocess.ddp_models import WIDTH, Numbers, backward, batch, both, hooks, numbers, read_flags

CAP = 0.002
"""MiB of a bucket: about three layers."""


class Chain(nn.Module):
    """Small layers, of which a forward may change the order or leave some out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.to(own_device())

    def forward(self, x: Tensor, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Tensor:
        """Run some layers in some order."""
        for number in order:
            x = torch.tanh(self.layers[number](x))
        return x


class _Late(torch.autograd.Function):
    """Adds to a parameter's gradient when backward gets here, as a re-entrant checkpoint does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameters: list[Tensor]) -> Tensor:
        (ctx.parameter,) = parameters  # in a list: as an argument, it would wait for this node
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            torch.autograd.backward(ctx.parameter.sum())
        return grad, None


def _ordinary(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    backward(model(batch(rank, step)).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def _different(model: Any, rank: int, how: str) -> None:
    x = batch(rank, 50)
    if how == "another order":
        backward(model(x, (5, 3, 1, 0, 2, 4)).square().mean())
    elif how == "added to":
        backward(model(x).square().mean())
        backward(model(batch(rank, 51), (5, 4, 3, 2, 1, 0)).square().mean())
    elif how == "set to zero":
        backward(model(x).square().mean())
        model.zero_grad(set_to_none=False)
        backward(model(batch(rank, 51), (5, 4, 3, 2, 1, 0)).square().mean())
    elif how == "accumulated":
        with model.no_sync():
            backward(model(x, (3, 4, 5, 0, 1, 2)).square().mean())
        backward(model(batch(rank, 51), (5, 4, 3, 2, 1, 0)).square().mean())
    elif how == "a part":
        backward(model(x, (1,)).square().mean())
    elif how == "input only":
        x.requires_grad_()
        torch.autograd.grad(model(x).sum(), x)
        backward(model(x).square().mean())


def surprised(rank: int, size: int, how: str, cap: float | None) -> tuple[Numbers, Numbers]:
    """Take a step that few hooks do not fit; return torch's weights and ours."""

    def run(ddp: type[Any]) -> Numbers:
        options = {"bucket_cap_mb": cap} if cap is not None and ddp is OurDDP else {}
        model = ddp(Chain(), find_unused_parameters=how == "a part", **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            _ordinary(model, optimizer, rank, step)
        if ddp is OurDDP:
            assert hooks(model) < 12, "all parameters still have hooks"
        _different(model, rank, how)
        optimizer.step()
        optimizer.zero_grad()
        for step in range(3, 6):
            _ordinary(model, optimizer, rank, step)
        return numbers(model)

    return both(run)


def a_part_by_mistake(rank: int, size: int) -> None:
    """Leave out the layers whose hooks are left, on the last rank only."""
    model = OurDDP(Chain())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        _ordinary(model, optimizer, rank, step)
    backward(model(batch(rank, 50), (1,) if rank == size - 1 else (0, 1, 2, 3, 4, 5)).square().mean())
    read_flags(model, rank)


def twice(rank: int, size: int) -> None:
    """Add to a gradient that is on its way already, and whose parameter has no hook left."""
    model = OurDDP(Chain(), bucket_cap_mb=CAP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        _ordinary(model, optimizer, rank, step)
    last = model.module.get_submodule("layers.5")
    silent = next(p for p in last.parameters() if not p._post_accumulate_grad_hooks)
    x = _Late.apply(batch(rank, 50).requires_grad_(), [silent])  # type: ignore[no-untyped-call]
    backward(model(x).square().mean())


def always_different(rank: int, size: int) -> int:
    """Change the order in every step; return how many hooks there are in the end."""
    model = OurDDP(Chain(), bucket_cap_mb=CAP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        order = (0, 1, 2, 3, 4, 5) if step % 2 else (5, 4, 3, 2, 1, 0)
        backward(model(batch(rank, step), order).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return hooks(model)
