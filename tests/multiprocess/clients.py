"""Small trainings through every client of torch.distributed; each returns numbers that do not depend on the backend."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")  # torch's own deprecations; the comparison is the test


class Net(nn.Module):
    """Two layers, and one more that a forward may leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 64)
        self.second = nn.Linear(64, 4)
        self.spare = nn.Linear(64, 4)

    def forward(self, x: Tensor, spare: bool = False) -> Tensor:
        hidden = torch.relu(self.first(x))
        out: Tensor = self.spare(hidden) if spare else self.second(hidden)
        return out


def _batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)


def _train(model: nn.Module, rank: int, *, steps: int = 4, alternate: bool = False) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, y = _batch(rank, step)
        optimizer.zero_grad()
        out = model(x, alternate and step % 2 == 1)
        nn.functional.mse_loss(out, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [float(_whole(p).double().sum()) for p in model.parameters()]


def _whole(parameter: nn.Parameter) -> Tensor:
    """Return all of a parameter, also of one that is sharded."""
    tensor: Any = parameter.detach()
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def ddp(rank: int, size: int, options: dict[str, Any]) -> list[float]:
    unused = bool(options.get("find_unused_parameters"))
    net: nn.Module = Net()
    if not unused:
        del net.spare
    return _train(DistributedDataParallel(net, bucket_cap_mb=0.002, **options), rank, alternate=unused)


def ddp_no_sync(rank: int, size: int) -> list[float]:
    net = Net()
    del net.spare
    model = DistributedDataParallel(net)
    with model.no_sync():
        x, y = _batch(rank, 7)
        nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    x, y = _batch(rank, 8)
    nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    return [float(p.grad.double().sum()) for p in model.parameters() if p.grad is not None]


def ddp_sparse(rank: int, size: int) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Embedding(50, 8, sparse=True))
    model(torch.tensor([rank, rank + 1, 7])).square().sum().backward()
    gradient = next(iter(model.parameters())).grad
    assert gradient is not None
    dense = gradient.to_dense().double()
    return [float(dense.sum()), float(dense[7].sum()), float(dense[rank].sum())]


def fsdp2(rank: int, size: int) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    net = Net()
    del net.spare
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    fully_shard(net.first, mesh=mesh)
    fully_shard(net.second, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return _train(net, rank)


def dtensor(rank: int, size: int) -> list[float]:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    generator = torch.Generator().manual_seed(3)
    left = torch.randn(8, 12, generator=generator)
    right = torch.randn(12, 8, generator=generator)
    a = distribute_tensor(left, mesh, [Shard(1)])
    b = distribute_tensor(right, mesh, [Shard(0)])
    product_of: Any = a @ b
    product = product_of.redistribute(mesh, [Replicate()]).to_local()
    torch.testing.assert_close(product, left @ right, rtol=1e-4, atol=1e-5)
    rows = distribute_tensor(left, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(rows.full_tensor(), left)
    partial = DTensor.from_local(left + rank, mesh, [Partial()]).redistribute(mesh, [Shard(0)])
    return [float(product.sum()), float(rows.to_local().sum()), float(partial.full_tensor().sum())]


def checkpoint(rank: int, size: int) -> list[float]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    net = Net()
    fully_shard(net, mesh=mesh)
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    save(get_model_state_dict(net), checkpoint_id=folder[0], no_dist=False)
    before = [float(_whole(p).sum()) for p in net.parameters()]
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    state = get_model_state_dict(net)
    load(state, checkpoint_id=folder[0])
    after = [float(_whole(p).sum()) for p in net.parameters()]
    assert before == after
    dist.barrier()
    if rank == 0:
        import shutil

        shutil.rmtree(folder[0])
    return after


def functional(rank: int, size: int) -> list[float]:
    from torch.distributed import _functional_collectives

    fc: Any = _functional_collectives

    group = dist.group.WORLD
    assert group is not None
    x = torch.arange(4.0 * size) + rank
    total = fc.wait_tensor(fc.all_reduce(x, "sum", group))
    gathered = fc.wait_tensor(fc.all_gather_tensor(x, 0, group))
    scattered = fc.wait_tensor(fc.reduce_scatter_tensor(x, "sum", 0, group))
    moved = fc.wait_tensor(fc.all_to_all_single(x, None, None, group))
    told = fc.wait_tensor(fc.broadcast(x, 0, group))
    coalesced = [fc.wait_tensor(t) for t in fc.all_reduce_coalesced([x, x * 2], "sum", group)]
    results = [total, gathered, scattered, moved, told, *coalesced]
    return [float((t * torch.arange(1, t.numel() + 1)).sum()) for t in results]
