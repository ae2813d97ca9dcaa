"""What a rank does in the tests of our DistributedDataParallel; most do it with torch's too, and return both."""

from __future__ import annotations

import contextlib
import copy
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.nn import DistributedDataParallel as OurDDP
from lockstep.nn import SyncBatchNorm
from tests.devices import ON_CPU, own_device
from tests.multiprocess.ddp_models import (
    Net,
    Numbers,
    backward,
    batch,
    both,
    gradient_of,
    numbers,
    read_flags,
    train,
)

NOTHING = -1e6


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
    read_flags(model, rank)


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


def buffers(rank: int, size: int) -> tuple[float, float, int]:
    """Return running statistics after a forward whose input differs between ranks, and after the next one began."""
    net: Any = Net()
    model = OurDDP(net)
    net.norm.running_mean = torch.full((200,), float(rank), device=own_device())  # assigned, not only changed
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


def joined(rank: int, size: int, divide: bool, accumulate: bool) -> tuple[Numbers, Numbers]:
    """Let rank r have 2 + r batches."""

    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Net())
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


def exact_bits(rank: int, size: int, cap: float | None) -> bytes:
    """Return the bytes of weights trained with exact=True."""
    model = OurDDP(Net(), exact=True, bucket_cap_mb=cap)
    train(model, rank)
    return b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())


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


def after_an_error(rank: int, size: int, cap: float | None, accumulate: bool) -> tuple[Numbers, Numbers]:
    """Let every rank's backward fail half-way, and go on, with a backward that is not reduced or one that is."""

    def run(ddp: type[Any]) -> Numbers:
        options = {"bucket_cap_mb": cap} if ddp is OurDDP else {}
        model = ddp(Net(), broadcast_buffers=False, **options)  # else the next forward would wait for a collective
        if ddp is OurDDP:
            before = copy.deepcopy(model.state_dict())
            _fail(model, rank)
            model.zero_grad()
            if accumulate:
                with model.no_sync():
                    backward(model(batch(rank, 1)).square().mean())
                model.zero_grad()
            model.load_state_dict(before)
        train(model, rank, steps=2)
        return numbers(model)

    return both(run)


def zeroed_after_an_error(rank: int, size: int, by_model: bool) -> tuple[Numbers, Numbers]:
    """Set gradients to zero in place after a backward that failed while they were on their way; return the next ones.

    Where a collective leaves the host alone, the others begin theirs only when rank 0 has set its gradients to zero.
    """
    others = dist.new_group(backend="gloo") if ON_CPU else None

    def run(ddp: type[Any]) -> Numbers:
        model = ddp(Net(), broadcast_buffers=False, **({"bucket_cap_mb": 0.01} if ddp is OurDDP else {}))
        if ddp is OurDDP:
            if others is not None and rank:
                dist.barrier(group=others)
            _fail(model, rank)
            if by_model:
                model.zero_grad(set_to_none=False)
            else:
                torch.optim.SGD(model.parameters(), lr=0.1).zero_grad(set_to_none=False)
            if others is not None and not rank:
                dist.barrier(group=others)
        backward(model(batch(rank, 1)).square().mean())
        return [float(gradient_of(parameter).double().sum()) for parameter in model.parameters()]

    return both(run)


def _fail(model: Any, rank: int) -> None:
    """Let a backward fail at its end."""

    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError

    x = batch(rank, 0).requires_grad_()
    handle = x.register_hook(fail)  # type: ignore[no-untyped-call]
    with contextlib.suppress(ZeroDivisionError):
        backward(model(x).square().mean())
    handle.remove()


def sync_batchnorm(rank: int, size: int) -> tuple[Numbers, Numbers]:
    """Compare uneven batches on all ranks with one rank that has them all."""
    rows = [4 + 2 * r for r in range(size)]
    whole = Net()
    net: Any = SyncBatchNorm.convert_sync_batchnorm(Net())
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
