"""What a rank does and checks in each case of the contract; every case holds on gloo and on shm."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives; both names must work

Op = Any
OPS: dict[str, Op] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def made(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Return the same numbers for the same seed on every rank."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(0, 7, shape, generator=generator).to(dtype)


def folded(parts: list[Tensor], op: str) -> Tensor:
    """Combine in the order that the design defines: the tree over ranks, written the plain way."""

    def node(lo: int, hi: int) -> Tensor:
        if hi - lo == 1:
            return parts[lo]
        power = 1
        while power * 2 < hi - lo:
            power *= 2
        return PAIRWISE[op](node(lo, lo + power), node(lo + power, hi))

    total = node(0, len(parts))
    if op != "avg":
        return total
    if total.is_complex():  # part by part: the nearest number, which torch's complex division misses
        return torch.view_as_complex(torch.view_as_real(total) / len(parts))
    return total / len(parts)


def agree(found: Tensor, expected: Tensor) -> None:
    """Bit for bit on shm, whose order is fixed; nearly so on gloo, whose is not."""
    if dist.get_backend() == "shm":
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert torch.equal(
            found.contiguous().view(-1).view(torch.uint8), expected.contiguous().view(-1).view(torch.uint8)
        )
    else:
        torch.testing.assert_close(found, expected, rtol=2e-2 if found.dtype.itemsize == 2 else 1e-4, atol=1e-3)


def all_reduce(rank: int, size: int, shape: tuple[int, ...], dtype: torch.dtype, op: str) -> None:
    parts = [made(shape, dtype, r) for r in range(size)]
    tensor = parts[rank].clone()
    dist.all_reduce(tensor, OPS[op])
    agree(tensor, folded(parts, op))


def reduce(rank: int, size: int, shape: tuple[int, ...], dtype: torch.dtype, op: str) -> None:
    parts = [made(shape, dtype, r) for r in range(size)]
    for root in range(size):
        tensor = parts[rank].clone()
        dist.reduce(tensor, root, OPS[op])
        if rank == root:
            agree(tensor, folded(parts, op))


def broadcast(rank: int, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for root in range(size):
        tensor = made(shape, dtype, rank)
        dist.broadcast(tensor, root)
        agree(tensor, made(shape, dtype, root))


def all_gather(rank: int, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    parts = [made(shape, dtype, r) for r in range(size)]
    outputs = [torch.empty_like(parts[0]) for _ in range(size)]
    dist.all_gather(outputs, parts[rank])
    for found, expected in zip(outputs, parts, strict=True):
        agree(found, expected)
    expected = torch.cat(parts) if shape else torch.stack(parts)
    whole = torch.empty_like(expected)
    dist.all_gather_into_tensor(whole, parts[rank])
    agree(whole, expected)


def gather_scatter(rank: int, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    parts = [made(shape, dtype, r) for r in range(size)]
    for root in range(size):
        outputs = [torch.empty_like(parts[0]) for _ in range(size)] if rank == root else None
        dist.gather(parts[rank], outputs, root)
        for found, expected in zip(outputs or [], parts, strict=rank == root):
            agree(found, expected)
        mine = torch.empty_like(parts[0])
        dist.scatter(mine, [p.clone() for p in parts] if rank == root else None, root)
        agree(mine, parts[rank])


def reduce_scatter(rank: int, size: int, shape: tuple[int, ...], dtype: torch.dtype, op: str) -> None:
    inputs = [[made(shape, dtype, 100 * r + to) for to in range(size)] for r in range(size)]
    expected = folded([inputs[r][rank] for r in range(size)], op)
    mine = torch.empty(shape, dtype=dtype)
    dist.reduce_scatter(mine, [t.clone() for t in inputs[rank]], OPS[op])
    agree(mine, expected)
    mine = torch.empty(shape, dtype=dtype)
    whole = torch.cat(inputs[rank]) if shape else torch.stack(inputs[rank])
    dist.reduce_scatter_tensor(mine, whole, OPS[op])
    agree(mine, expected)


def all_to_all_single(rank: int, size: int, splits: list[list[int]], width: int, dtype: torch.dtype) -> None:
    """Exchange `splits[source][to]` rows."""
    sent = [[made((splits[s][t], width), dtype, 100 * s + t) for t in range(size)] for s in range(size)]
    outgoing, incoming = splits[rank], [splits[s][rank] for s in range(size)]
    output = torch.empty((sum(incoming), width), dtype=dtype)
    dist.all_to_all_single(output, torch.cat(sent[rank]), incoming, outgoing)
    agree(output, torch.cat([sent[s][rank] for s in range(size)]))


def all_to_all_even(rank: int, size: int, rows: int) -> None:
    output = torch.empty(rows * size)
    dist.all_to_all_single(output, torch.arange(rows * size, dtype=torch.float32) + 1000 * rank)
    agree(output, torch.cat([torch.arange(rows, dtype=torch.float32) + rows * rank + 1000 * s for s in range(size)]))


def messages(rank: int, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Around the ring, blocking and not, with tags in another order, and from any source."""
    right, left = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return
    pending = [dist.isend(made(shape, dtype, 10 * rank + tag), right, tag=tag) for tag in (1, 2, 3)]
    for tag in (3, 1, 2):
        tensor = torch.empty(shape, dtype=dtype)
        work = dist.irecv(tensor, left, tag=tag)
        assert work is not None
        work.wait()
        agree(tensor, made(shape, dtype, 10 * left + tag))
    for sent in pending:
        assert sent is not None
        sent.wait()
    received = torch.empty(shape, dtype=dtype)
    operations = [
        dist.P2POp(dist.irecv, received, left),
        dist.P2POp(dist.isend, made(shape, dtype, rank), right),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    agree(received, made(shape, dtype, left))
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.empty(shape, dtype=dtype)
            source = dist.recv(tensor, tag=7)
            agree(tensor, made(shape, dtype, source))
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(made(shape, dtype, rank), 0, tag=7)


def objects(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, mine)
    assert [o["rank"] for o in everyone] == list(range(size))
    told = [mine if rank == 0 else None]
    dist.broadcast_object_list(told, 0)
    assert told[0] == {"rank": 0, "text": ""}
    collected: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(mine, collected, 0)
    assert collected is None or [o["rank"] for o in collected] == list(range(size))
    given: list[Any] = [None]
    dist.scatter_object_list(given, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert given == [f"for {rank}"]


def asynchronous(rank: int, size: int) -> None:
    """Many operations under way at once end in order, through wait, futures and polling."""
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 1000, 300_000, 7, 50_000)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    assert all(work is not None for work in works)
    last = dist.broadcast(word := torch.tensor([rank]), size - 1, async_op=True)
    assert last is not None
    for work in reversed(works):
        work.wait()
    for n, tensor in zip((1, 1000, 300_000, 7, 50_000), tensors, strict=True):
        agree(tensor, torch.full((n,), float(sum(r + n for r in range(size)))))
    last.wait()
    assert last.is_completed()
    assert word.item() == size - 1
    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    agree(doubled.wait(), torch.full((5,), 2.0 * size))
    dist.barrier(async_op=True).wait()
    # What hangs on a future may issue an operation and wait for it, as communication hooks of DDP do.
    first = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    second = first.then(lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0])
    agree(second.wait(), torch.full((5,), float(size * size)))


def coalesced(rank: int, size: int) -> None:
    parts = [[made((n,), torch.float32, 10 * r + n) for n in (3, 70_000, 1)] for r in range(size)]
    tensors = [t.clone() for t in parts[rank]]
    dist.all_reduce_coalesced(tensors)
    for i, found in enumerate(tensors):
        agree(found, folded([parts[r][i] for r in range(size)], "sum"))
    tensors = [t.clone() for t in parts[rank]]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for i, found in enumerate(tensors):
        agree(found, folded([parts[r][i] for r in range(size)], "sum"))
    outputs = [[torch.empty_like(t) for t in parts[0]] for _ in range(size)]
    dist.all_gather_coalesced(outputs, parts[rank])
    for r in range(size):
        for found, expected in zip(outputs[r], parts[r], strict=True):
            agree(found, expected)


def subgroups(rank: int, size: int) -> None:
    """Groups that overlap, used at the same time from several threads."""
    groups = [dist.new_group(list(range(size)), use_local_synchronization=False) for _ in range(3)]
    half = dist.new_group(list(range(0, size, 2)))
    failures: list[BaseException] = []

    def use(index: int) -> None:
        try:
            for step in range(20):
                tensor = torch.full((100 * (index + 1),), float(rank + step))
                dist.all_reduce(tensor, group=groups[index])
                agree(tensor, torch.full_like(tensor, float(sum(r + step for r in range(size)))))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    if rank % 2 == 0:
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=half)
        assert tensor.item() == sum(range(0, size, 2))
        dist.destroy_process_group(half)
    for group in groups:
        dist.destroy_process_group(group)


def in_place(rank: int, size: int) -> None:
    """The input of a gather may be its place in the output, and that of a reduce_scatter likewise."""
    whole = torch.zeros(size * 1000)
    mine = whole[rank * 1000 : (rank + 1) * 1000]
    mine.fill_(rank + 1)
    dist.all_gather_into_tensor(whole, mine)
    agree(whole, torch.arange(1.0, size + 1).repeat_interleave(1000))
    if dist.get_backend() == "shm":  # gloo refuses some and takes the wrong bytes of others
        negated = (torch.ones(3, dtype=torch.complex64) * 1j).conj().imag
        odd = [torch.ones(3, 5).t(), torch.ones(4, 6)[::2, 1::2], negated]
        for tensor in odd:
            expected = tensor.clone() * size
            dist.all_reduce(tensor)
            agree(tensor.clone(), expected)
            told = torch.zeros_like(tensor) if rank else tensor
            dist.broadcast(told, 0)
            agree(told.clone(), tensor.clone())
    parameter = torch.nn.Parameter(torch.full((10,), float(rank)))
    dist.all_reduce(parameter)
    agree(parameter.detach(), torch.full((10,), float(sum(range(size)))))
