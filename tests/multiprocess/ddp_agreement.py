"""Models that change, differ between ranks or are copied, in the tests of our DistributedDataParallel."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lockstep.errors import BadInput
from lockstep.nn import DistributedDataParallel as OurDDP
from tests.devices import own_device
from tests.multiprocess.ddp_models import Net, backward, batch, gradient_of, hooks, numbers, train


def changed(rank: int, size: int, how: str) -> None:
    """Change a model after wrapping it; the next forward refuses."""
    net = Net()
    net.last.bias.requires_grad_(False)
    model = OurDDP(net)
    backward(model(batch(rank, 0)).square().mean())
    change(net, how)
    model(batch(rank, 1))


def silent_in_torch(rank: int, size: int, how: str) -> bool:
    """Do the same to torch's; return whether it trained on with a gradient that differs from rank 0's."""
    net: Any = Net()
    net.last.bias.requires_grad_(False)
    model = TorchDDP(net)
    backward(model(batch(rank, 0)).square().mean())
    model.zero_grad()
    change(net, how)
    inputs = batch(rank, 1).to(net.first.weight.dtype)
    backward(net.extra(model(inputs)).sum() if how == "added" else model(inputs).square().mean())
    suspects = {"unfrozen": "last.bias", "added": "extra.weight", "replaced": "again.weight"}
    mine = gradient_of(net.get_parameter(suspects.get(how, "first.bias")))
    theirs = mine.clone()
    dist.broadcast(theirs, src=0)
    return not torch.equal(mine, theirs)


def change(net: Any, how: str) -> None:
    if how == "frozen":
        net.first.weight.requires_grad_(False)
    elif how == "unfrozen":
        net.last.bias.requires_grad_(True)
    elif how == "added":
        net.extra = nn.Linear(3, 3, device=own_device())
    elif how == "reshaped":
        net.spare.bias.data = torch.zeros(4, device=own_device())
    elif how == "replaced":
        net.again.weight = nn.Parameter(torch.zeros(200, 200, device=own_device()))
    elif how == "dtype":
        net.double()


def harmless_change(rank: int, size: int) -> None:
    net = Net()
    model = OurDDP(net)
    net.extra = nn.Dropout(0.0)
    model(batch(rank, 0))
    model(batch(rank, 1))


def different_models(rank: int, size: int, how: str) -> None:
    net: Any = Net()
    odd = rank == size - 1
    options: dict[str, Any] = {}
    if odd and how == "shape":
        net.last = nn.Linear(200, 4, device=own_device())
    elif odd and how == "dtype":
        net.middle.double()
    elif odd and how == "name":
        net.other = net.spare
        del net.spare
    elif odd and how == "fewer":
        del net.spare
    elif odd and how == "options":
        options = {"bucket_cap_mb": 1}
    elif odd and how == "init_sync":
        options = {"init_sync": False}
    OurDDP(net, **options)


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
    if hooks(again) != len(list(again.module.parameters())):
        wrong.append(f"{hooks(again)} hooks")
    again.zero_grad()
    for wrapper in (again, other, whole, pickle.loads(pickle.dumps(other))):
        train(wrapper, rank, steps=2)
    if numbers(again) != numbers(other):
        wrong.append("a loaded model trains otherwise")
    if numbers(whole) != numbers(other):
        wrong.append("a copied wrapper trains otherwise")
    return wrong


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
