"""What a rank does in the tests of our DistributedDataParallel; most do it with torch's too, and return both."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

from lockstep.errors import BadInput
from lockstep.nn import DistributedDataParallel as OurDDP
from lockstep.nn import SyncBatchNorm

Numbers = list[float]
WIDTH = 12
NOTHING = -1e6


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
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def numbers(model: nn.Module) -> Numbers:
    """Return a model's weights and buffers."""
    return [float(x) for t in model.state_dict().values() for x in t.double().flatten()[:50]]


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def both(run: Callable[[type[Any]], Any]) -> tuple[Any, Any]:
    """Do something with torch's class and with ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        return run(TorchDDP), run(OurDDP)


def train(model: nn.Module, rank: int, *, steps: int = 4, set_to_none: bool = True, **extra: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        backward(model(batch(rank, step), **extra).square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)


def trained(rank: int, size: int, options: dict[str, Any], set_to_none: bool = True) -> tuple[Numbers, Numbers]:
    """Train from weights that differ between ranks: rank 0's win."""

    def run(ddp: type[Any]) -> Numbers:
        ours = {k: v for k, v in options.items() if ddp is OurDDP or k not in ("exact", "bucket_cap_mb")}
        model = ddp(Net(seed=rank), **ours)
        train(model, rank, set_to_none=set_to_none)
        return numbers(model)

    return both(run)


def accumulated(rank: int, size: int) -> tuple[Numbers, Numbers]:
    """Reduce every fourth backward only, as `--grad-accum-steps 4` does; the third step raises inside no_sync."""

    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(12):
            last = step % 4 == 3
            with contextlib.nullcontext() if last else model.no_sync():
                backward(model(batch(rank, step)).square().mean() / 4)
            if last:
                optimizer.step()
                optimizer.zero_grad()
        with contextlib.suppress(ZeroDivisionError), model.no_sync():
            raise ZeroDivisionError
        assert model.require_backward_grad_sync
        return numbers(model)

    return both(run)


def views(rank: int, size: int) -> tuple[int, list[bool]]:
    """Return the number of storages behind all gradients, and whether they are the same in each step."""
    model = OurDDP(Net())
    places = []
    for step in range(3):
        backward(model(batch(rank, step)).square().mean())
        places.append([gradient_of(p).data_ptr() for p in model.parameters()])
        storages = {gradient_of(p).untyped_storage().data_ptr() for p in model.parameters()}
        model.zero_grad(set_to_none=True)
        assert all(p.grad is None for p in model.parameters())
    return len(storages), [one == places[0] for one in places]


def unused(rank: int, size: int, everywhere: bool) -> None:
    """Leave out a layer, on all ranks or on the last one only."""
    model = OurDDP(Net())
    backward(model(batch(rank, 0)).square().mean())
    model.zero_grad()
    left_out = everywhere or rank == size - 1
    backward(model(batch(rank, 1), spare=False if left_out else None).square().mean())


def unused_allowed(rank: int, size: int) -> tuple[Numbers, Numbers]:
    """Use a layer on some ranks, on none and on all, in turn."""

    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Net(), find_unused_parameters=True)
        found: list[float] = []
        for step, spare in enumerate([rank == 0, False, None, True]):
            backward(model(batch(rank, step), spare=spare).square().mean())
            looked_at = (model.module.spare.weight, model.module.last.bias, model.module.middle.weight)
            found += [NOTHING if p.grad is None else float(p.grad.double().sum()) for p in looked_at]
            model.zero_grad()
        return found

    return both(run)


def changed(rank: int, size: int, how: str) -> None:
    """Change a model after wrapping it; the next forward refuses."""
    net = Net()
    net.last.bias.requires_grad_(False)
    model = OurDDP(net)
    backward(model(batch(rank, 0)).square().mean())
    if how == "frozen":
        net.first.weight.requires_grad_(False)
    elif how == "unfrozen":
        net.last.bias.requires_grad_(True)
    elif how == "added":
        net.extra = nn.Linear(3, 3)
    elif how == "reshaped":
        net.spare.bias.data = torch.zeros(4)
    elif how == "replaced":
        net.again.weight = nn.Parameter(torch.zeros(200, 200))
    elif how == "dtype":
        net.double()
    model(batch(rank, 1))


def harmless_change(rank: int, size: int) -> None:
    net = Net()
    model = OurDDP(net)
    net.extra = nn.Dropout(0.0)
    model(batch(rank, 0))
    model(batch(rank, 1))


def buffers(rank: int, size: int) -> tuple[float, float, int]:
    """Return running statistics after a forward whose input differs between ranks, and after the next one began."""
    net: Any = Net()
    model = OurDDP(net)
    net.norm.running_mean = torch.full((200,), float(rank))  # assigned, not only changed
    net.norm.num_batches_tracked += rank
    seen = []
    net.first.register_forward_pre_hook(lambda *_: seen.append(net.norm.running_mean.clone()))
    model(batch(rank, 0))
    other: Any = Net()
    own = OurDDP(other, broadcast_buffers=False)
    other.norm.running_mean.fill_(float(rank))
    own.eval()
    own(batch(rank, 0))
    return float(seen[0].mean()), float(other.norm.running_mean.mean()), int(net.norm.num_batches_tracked)


def different_models(rank: int, size: int, how: str) -> None:
    net: Any = Net()
    odd = rank == size - 1
    options: dict[str, Any] = {}
    if odd and how == "shape":
        net.last = nn.Linear(200, 4)
    elif odd and how == "dtype":
        net.middle.double()
    elif odd and how == "name":
        net.other = net.spare
        del net.spare
    elif odd and how == "fewer":
        del net.spare
    elif odd and how == "options":
        options = {"bucket_cap_mb": 1}
    OurDDP(net, **options)


def joined(rank: int, size: int, divide: bool, accumulate: bool) -> tuple[Numbers, Numbers]:
    """Let rank r have 2 + r batches."""

    # torch's join with divide_by_initial_world_size=False was seen to hang on shm: the reference runs on gloo
    gloo = dist.new_group(list(range(size)), backend="gloo")

    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Net(), process_group=gloo if ddp is TorchDDP else None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with model.join(divide_by_initial_world_size=divide):
            for step in range(2 + rank):
                waits = accumulate and step % 2 == 0
                with model.no_sync() if waits else contextlib.nullcontext():
                    backward(model(batch(rank, step)).square().mean())
                if not waits:
                    optimizer.step()
                    optimizer.zero_grad()
        return numbers(model)

    return both(run)


def joined_early(rank: int, size: int) -> None:
    model = OurDDP(Net())
    with model.join(throw_on_early_termination=True):
        for step in range(2 + rank):
            backward(model(batch(rank, step)).square().mean())


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
    """One layer, run twice, each time recomputed in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant = reentrant
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return x


def checkpointed(rank: int, size: int, reentrant: bool, options: dict[str, Any]) -> tuple[Numbers, Numbers]:
    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Checkpointed(reentrant), **options)
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


def copies(rank: int, size: int) -> list[str]:
    """Copy, pickle and wrap again; return what went wrong."""
    model = OurDDP(Net())
    backward(model(batch(rank, 0)).square().mean())
    wrong = []
    inner = copy.deepcopy(model.module)
    backward(inner(batch(0, 0)).square().mean())  # no hook: else the other ranks would be waited for
    file = io.BytesIO()
    torch.save(model.module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    if rank == 0:  # alone: nothing of the wrapper must have come along
        backward(loaded(batch(0, 0)).square().mean())
    names = [f"module.{name}" for name in model.module.state_dict()]
    if list(model.state_dict()) != names:
        wrong.append(f"names {list(model.state_dict())}")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = OurDDP(Net(seed=5))
    other.load_state_dict(torch.load(file, weights_only=True))
    again, whole = OurDDP(model.module), copy.deepcopy(other)
    del model
    again.zero_grad()
    for wrapper in (again, other, whole, pickle.loads(pickle.dumps(other))):
        train(wrapper, rank, steps=2)
    if numbers(again) != numbers(other):
        wrong.append("a loaded model trains otherwise")
    if numbers(whole) != numbers(other):
        wrong.append("a copied wrapper trains otherwise")
    left = sum(len(p._post_accumulate_grad_hooks or {}) for p in again.module.parameters())
    if left != len(list(again.module.parameters())):
        wrong.append(f"{left} hooks")
    return wrong


def exact_bits(rank: int, size: int, cap: float | None) -> bytes:
    """Return the bytes of weights trained with exact=True."""
    model = OurDDP(Net(), exact=True, bucket_cap_mb=cap)
    train(model, rank)
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def patterns(rank: int, size: int) -> tuple[Numbers, Numbers]:
    """Two forwards for one backward, an evaluation in between, autograd.grad, a backward of the inner model alone."""

    def run(ddp: type[Any]) -> Numbers:
        net = Net()
        net.norm.eval()
        model = ddp(net)
        found = []
        loss = model(batch(rank, 0)).square().mean() + model(batch(rank, 1)).square().mean()
        with torch.no_grad():
            model(batch(rank, 2))
        backward(loss)
        found.append(float(gradient_of(net.first.weight).double().sum()))
        model.zero_grad()
        x = batch(rank, 3).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        backward(model(x).square().mean() + gradient.square().mean())
        found.append(float(gradient_of(net.first.weight).double().sum()))
        model.zero_grad()
        if rank == 0:
            backward(net(batch(rank, 4)).sum())
        model.zero_grad()
        backward(model(batch(rank, 5)).square().mean())
        backward(model(batch(rank, 6)).square().mean())  # gradients add up, reduced twice
        return [*found, float(gradient_of(net.first.weight).double().sum())]

    return both(run)


def after_an_error(rank: int, size: int) -> tuple[Numbers, Numbers]:
    """Let every rank's backward fail half-way, and go on."""

    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Net())
        if ddp is OurDDP:

            def fail(gradient: Tensor) -> None:
                raise ZeroDivisionError

            x = batch(rank, 0).requires_grad_()
            handle = x.register_hook(fail)  # type: ignore[no-untyped-call]
            with contextlib.suppress(ZeroDivisionError):
                backward(model(x).square().mean())
            handle.remove()
            model.zero_grad()
            model.load_state_dict(TorchDDP(Net()).state_dict())
        train(model, rank, steps=2)
        return numbers(model)

    return both(run)


def sync_batchnorm(rank: int, size: int) -> tuple[Numbers, Numbers]:
    """Compare uneven batches on all ranks with one rank that has them all."""
    rows = [4 + 2 * r for r in range(size)]
    whole = Net()
    net: Any = SyncBatchNorm.convert(Net())
    model = OurDDP(net)
    for step in range(2):
        share = size * rows[rank] / sum(rows)
        backward(model(batch(rank, step, rows[rank])).square().mean() * share)
        backward(whole(torch.cat([batch(r, step, rows[r]) for r in range(size)])).square().mean())
        for one in (net, whole):
            torch.optim.SGD(one.parameters(), lr=0.05).step()
            one.zero_grad()
    return numbers(whole), numbers(net)


def die(rank: int, size: int) -> None:
    """Lose the last rank in the middle of a training."""
    model = OurDDP(Net())
    for step in range(100):
        if rank == size - 1 and step == 3:
            os._exit(1)
        backward(model(batch(rank, step)).square().mean())
        model.zero_grad()


def refused(rank: int, size: int, options: dict[str, Any]) -> None:
    OurDDP(Net(), **options)


def accepted(rank: int, size: int) -> None:
    """Take what stock calls pass."""
    group = dist.new_group(list(range(size)))
    OurDDP(
        Net(),
        device_ids=None,
        output_device=None,
        dim=0,
        broadcast_buffers=True,
        process_group=group,
        bucket_cap_mb=25,
        find_unused_parameters=False,
        check_reduction=False,
        gradient_as_bucket_view=True,
        static_graph=False,
        mixed_precision=None,
        device_mesh=None,
        batched_grad_copy=True,
    )
    with pytest.raises(BadInput, match="communication hooks"):
        OurDDP(Net()).register_comm_hook(None, None)
