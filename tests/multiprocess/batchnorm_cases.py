"""What the ranks run in the tests of SyncBatchNorm; everything returned is plain arrays and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from lockstep.nn import SyncBatchNorm
from tests.devices import COLLECTIVES, here, own_device

Arrays = dict[str, Any]
BACKENDS = here(("gloo", "shm"), (COLLECTIVES,))
LOCAL = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Case:
    """A batch, cut over ranks, and a layer."""

    rows: tuple[int, ...]
    rest: tuple[int, ...]
    dtype: str = "float32"
    seed: int = 0
    steps: int = 1
    channels_last: bool = False
    offset: float = 0.0
    spread: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    def span(self, rank: int) -> slice:
        return slice(sum(self.rows[:rank]), sum(self.rows[: rank + 1]))

    def layer(self) -> _BatchNorm:
        generator = torch.Generator().manual_seed(self.seed)
        made: _BatchNorm = LOCAL[1 + len(self.rest)](self.rest[0], **self.options)
        for parameter in made.parameters():
            nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
        return made.to(getattr(torch, self.dtype))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and gradients of the outputs; values are spread evenly, so that no channel is degenerate."""
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        shape = (sum(self.rows), *self.rest)
        count = torch.Size(shape).numel() // self.rest[0]
        even = torch.linspace(-1.7, 1.7, count, dtype=torch.float64)
        columns = [even[torch.randperm(count, generator=generator)] for _ in range(self.rest[0])]
        x = torch.stack(columns).view(self.rest[0], shape[0], *self.rest[1:]).transpose(0, 1).contiguous()
        x = (x * self.spread + self.offset).to(getattr(torch, self.dtype))
        grad = torch.randn(shape, generator=generator, dtype=torch.float64).to(x.dtype)
        if self.channels_last and x.dim() in LAYOUTS:
            x = x.to(memory_format=LAYOUTS[x.dim()])
        return x, grad


def arrays(tensors: dict[str, Any]) -> Arrays:
    return {name: cast(Tensor, value).detach().cpu().double().numpy() for name, value in tensors.items()}


def walk(layer: nn.Module, case: Case, span: slice, autocast: torch.dtype | None = None, device: str = "cpu") -> Arrays:
    """Run some steps over a part of the batch; return the last step's results and the layer's state."""
    layer.to(device)
    for step in range(case.steps):
        x, grad = (one[span].to(device) for one in case.batch(step))
        x = x.detach().requires_grad_()
        layer.zero_grad()
        kind = torch.device(device).type
        with torch.autocast(kind, autocast or torch.bfloat16, enabled=autocast is not None):
            y = layer(x if autocast is None else x.to(autocast))
        torch.autograd.backward(y, grad.to(y.dtype))
    found = {"output": y, "input.grad": x.grad, **dict(layer.named_buffers())}
    return arrays(found | {f"{name}.grad": parameter.grad for name, parameter in layer.named_parameters()})


def whole(case: Case, autocast: torch.dtype | None = None) -> Arrays:
    """Return what BatchNorm gives for the concatenated batch."""
    return walk(case.layer(), case, slice(None), autocast)


_groups: dict[tuple[str, int], dist.ProcessGroup] = {}


def within(rank: int, size: int, backend: str, count: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run `function(group, *arguments)` on the first `count` ranks; all of them are needed to make a group."""
    if (backend, count) not in _groups:
        _groups[backend, count] = dist.new_group(list(range(count)), backend=backend)
    return function(_groups[backend, count], *arguments) if rank < count else None


def part(group: dist.ProcessGroup, case: Case, autocast: torch.dtype | None = None) -> Arrays:
    """Return what this rank's share gives."""
    layer = SyncBatchNorm.convert_sync_batchnorm(case.layer(), group)
    return walk(layer, case, case.span(group.rank()), autocast, own_device())


def together(parts: list[Arrays]) -> Arrays:
    """Put the ranks' results together: activations one after another, gradients of parameters summed."""
    joined = {}
    for name in parts[0]:
        values = [found[name] for found in parts]
        if name in ("output", "input.grad"):
            joined[name] = np.concatenate(values)
        elif name.endswith(".grad"):
            joined[name] = np.sum(values, axis=0)
        else:
            assert all(np.array_equal(value, values[0]) for value in values), f"{name} differs between ranks"
            joined[name] = values[0]
    return joined


class Everyone(torch.autograd.Function):
    """The whole batch through SyncBatchNorm, each rank its part: a function of one tensor, as gradcheck wants it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: SyncBatchNorm, case: Case) -> Tensor:
        group = cast(dist.ProcessGroup, layer.group)
        ctx.group, ctx.span = group, case.span(group.rank())
        ctx.leaves = [tensor.detach().requires_grad_() for tensor in (x[ctx.span], weight, bias)]
        with torch.enable_grad():
            layer._parameters.update(weight=cast(Any, ctx.leaves[1]), bias=cast(Any, ctx.leaves[2]))
            ctx.own = layer(ctx.leaves[0])
        return Everyone.joined(ctx, ctx.own.detach(), x)

    @staticmethod
    def joined(ctx: Any, part: Tensor, like: Tensor) -> Tensor:
        full = torch.zeros_like(like)
        full[ctx.span] = part
        dist.all_reduce(full, group=ctx.group)
        return full

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        of_x, *of_parameters = torch.autograd.grad(ctx.own, ctx.leaves, grad[ctx.span], retain_graph=True)
        for gradient in of_parameters:
            dist.all_reduce(gradient, group=ctx.group)
        return Everyone.joined(ctx, of_x, grad), *of_parameters, None, None


def check_gradients(group: dist.ProcessGroup, case: Case) -> bool:
    layer = cast(SyncBatchNorm, SyncBatchNorm.convert_sync_batchnorm(case.layer(), group).to(own_device()))
    x = case.batch(0)[0].to(own_device()).requires_grad_()
    weight, bias = (parameter.detach().clone().requires_grad_() for parameter in (layer.weight, layer.bias))
    run: Callable[..., Tensor] = Everyone.apply
    return torch.autograd.gradcheck(lambda *leaves: run(*leaves, layer, case), (x, weight, bias), fast_mode=False)


def one_evaluates(group: dist.ProcessGroup, odd: int) -> None:
    layer = SyncBatchNorm(4, group=group, device=own_device())
    layer.train(group.rank() != odd)
    layer(torch.randn(3, 4, device=own_device()))


def frozen(group: dist.ProcessGroup) -> list[float]:
    """Train with a layer in evaluation mode on every rank, then evaluate on one rank alone."""
    layer = SyncBatchNorm(4, group=group, device=own_device()).eval()
    x = torch.ones(2, 4, requires_grad=True, device=own_device())
    for _ in range(3):
        torch.autograd.backward(layer(x).sum())
    layer.eval()
    if group.rank() == 1:
        with torch.no_grad():
            layer(x)
    return cast(Tensor, x.grad).flatten().tolist()


def graphs(group: dist.ProcessGroup) -> list[bool]:
    """Two forwards before their backwards, and a backward walked twice, give what they give one by one."""
    layer = SyncBatchNorm(3, group=group, device=own_device())
    generator = torch.Generator().manual_seed(group.rank())
    inputs = [torch.randn(4, 3, 5, generator=generator).to(own_device()).requires_grad_() for _ in range(2)]
    weights = torch.randn(4, 3, 5, generator=generator).to(own_device())
    alone = [torch.autograd.grad((layer(x) * weights).sum(), x)[0] for x in inputs]
    losses = [(layer(x) * weights).sum() for x in inputs]
    first = [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss, x in zip(losses, inputs, strict=True)]
    again = [torch.autograd.grad(loss, x)[0] for loss, x in zip(losses, inputs, strict=True)]
    return [torch.equal(a, b) for found in (first, again) for a, b in zip(alone, found, strict=True)]


def twice_differentiated(group: dist.ProcessGroup) -> None:
    x = torch.randn(4, 3, requires_grad=True, device=own_device())
    torch.autograd.grad(SyncBatchNorm(3, group=group, device=own_device())(x).square().sum(), x, create_graph=True)


def wrong_shape(group: dist.ProcessGroup, shape: tuple[int, ...]) -> None:
    SyncBatchNorm(3, group=group, device=own_device())(torch.zeros(shape, device=own_device()))


def silent(group: dist.ProcessGroup, case: Case, quiet: int) -> Arrays:
    """One rank runs a filler that counts for nothing."""
    from lockstep.nn.convert import without_samples

    layer = SyncBatchNorm.convert_sync_batchnorm(case.layer(), group)
    if group.rank() != quiet:
        return walk(layer, case, case.span(group.rank()), device=own_device())
    layer.to(own_device())
    x = torch.full((1, *case.rest), 1e3, requires_grad=True, device=own_device())
    with without_samples(layer):
        y = layer(x)
    torch.autograd.backward(y, torch.zeros_like(y))
    assert layer.training
    empty = {"output": np.zeros((0, *case.rest)), "input.grad": np.zeros((0, *case.rest))}
    assert not cast(Tensor, x.grad).any()
    gradients = {f"{n}.grad": p.grad for n, p in layer.named_parameters()}
    return empty | arrays(dict(layer.named_buffers()) | gradients)


def under_torch_ddp(group: dist.ProcessGroup, shared: bool) -> Arrays:
    """Train a small model under torch's DDP; each rank has its share of a batch, or one rank everything."""
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    x, target = torch.randn(6, 2, 5, 5), torch.randn(6, 3)
    plain(x)
    cast(_BatchNorm, plain[1]).reset_running_stats()
    model: nn.Module = plain.to(own_device())
    x, target = x.to(own_device()), target.to(own_device())
    if shared:
        model = DistributedDataParallel(SyncBatchNorm.convert_sync_batchnorm(model, group), process_group=group)
        size = 6 // group.size()
        span = slice(group.rank() * size, (group.rank() + 1) * size)
        x, target = x[span], target[span]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward((model(x) - target).square().mean())
        optimizer.step()
    return arrays({name.removeprefix("module."): value for name, value in model.state_dict().items()})
