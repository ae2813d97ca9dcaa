"""What ranks do in the fault tests."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from lockstep.comm import collectives, large, libc

MANY = 2_000_000  # several rounds of the segment


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(module: Any, name: str, count: int) -> None:
    """Replace a function of the backend by one that ends the process at its `count`-th call."""
    original = getattr(module, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            die()
        return original(*args, **kwargs)

    setattr(module, name, counted)


PHASES: dict[str, tuple[Any, str, int]] = {
    "before the first copy": (large, "memmove", 1),
    "between two copies in": (large, "memmove", 2),
    "before the first flag": (libc, "post", 1),
    "between two flags": (libc, "post", 2),
    "before a combination": (large.LargeReductions, "_combine", 1),
    "between a result and its flag": (libc, "post", 3),
    "between two flags of a later round": (libc, "post", 6),
    "before the first copy out": (large, "memmove", 5),
    "between two copies out": (large, "memmove", 10),
    "at the last combination": (large.LargeReductions, "_combine", 8),
}


def die_beside_a_late_rank(rank: int, size: int, victim: int, late: int) -> None:
    dist.barrier()
    if rank == victim:
        die()
    if rank != late:
        dist.all_reduce(torch.ones(5))


def all_reduce_and_die(rank: int, size: int, victim: int, phase: str, background: bool) -> None:
    dist.barrier()
    if rank == victim:
        _die_at(*PHASES[phase])
    work = dist.all_reduce(torch.ones(MANY), async_op=background)
    if background:
        more = dist.all_reduce(torch.ones(3), async_op=True)
        for pending in (work, more):
            pending.wait()
    # The collective in which the rank died may still have ended well here; the next one cannot.
    dist.all_reduce(torch.ones(3))


def collective_and_die(rank: int, size: int, kind: str, victim: int) -> None:
    dist.barrier()
    if rank == victim:
        _die_at(libc, "post", size)
    call(rank, size, kind)
    dist.barrier()


def call(rank: int, size: int, kind: str) -> None:
    x = torch.ones(size * 1000)
    if kind == "broadcast":
        dist.broadcast(x, 0)
    elif kind == "all_gather":
        dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
    elif kind == "reduce_scatter":
        dist.reduce_scatter_tensor(torch.empty(1000), x)
    elif kind == "all_to_all":
        dist.all_to_all_single(torch.empty_like(x), x)
    elif kind == "scatter":
        dist.scatter(torch.empty_like(x), [x] * size if rank == 0 else None, 0)
    elif kind == "barrier":
        dist.barrier()


def absent(rank: int, size: int, missing: int) -> None:
    """All but one rank call a collective."""
    if rank == missing:
        time.sleep(3)
    else:
        dist.all_reduce(torch.ones(5))


def impatient(rank: int, size: int) -> str:
    """A limit on waiting is not one on the operation: it ends well when the last rank comes."""
    x = torch.ones(5)
    if rank == size - 1:
        time.sleep(1)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    text = ""
    if rank != size - 1:
        assert not work.is_completed()
        try:
            work.wait(timedelta(seconds=0.2))
        except RuntimeError as error:
            text = str(error)
    work.wait()
    assert work.is_completed()
    assert x[0] == size
    return text


def monitored(rank: int, size: int) -> None:
    if rank == 0:
        dist.group.WORLD.monitored_barrier(timedelta(seconds=0.5))  # type: ignore[union-attr]
    else:
        time.sleep(1.5)


def leave_early(rank: int, size: int) -> None:
    if rank == 1:
        dist.destroy_process_group()
    else:
        dist.all_reduce(torch.ones(5))


def differ(rank: int, size: int, how: str) -> None:
    """The last rank calls something else."""
    odd = rank == size - 1
    x = torch.ones(10)
    if how == "kind":
        dist.broadcast(x, 0) if odd else dist.all_reduce(x)
    elif how == "op":
        dist.all_reduce(x, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
    elif how == "dtype":
        dist.all_reduce(x.double() if odd else x)
    elif how == "size":
        dist.all_reduce(torch.ones(MANY) if odd else x)
    elif how == "root":
        dist.broadcast(x, 1 if odd else 0)
    elif how == "order":
        dist.barrier() if odd else dist.all_reduce(x)
    elif how == "async":
        work = dist.all_reduce(x.double() if odd else x, async_op=True)
        assert work is not None
        work.wait()
    elif how == "splits":
        sizes = [10 // size] * size if not odd else [10 // size + 1] + [10 // size] * (size - 1)
        dist.all_to_all_single(torch.empty(sum(sizes)), torch.ones(10 // size * size), sizes, [10 // size] * size)


def still_works(rank: int, size: int) -> None:
    x = torch.ones(10)
    dist.all_reduce(x)
    assert x[0] == size


def message_to_or_from(rank: int, size: int, way: str, peer: int) -> None:
    dist.barrier()
    if rank == peer:
        die()
    x = torch.ones(MANY)
    if way == "recv":
        dist.recv(x, peer)
    elif way == "any":
        dist.recv(x)
    elif way == "send":
        dist.send(x, peer)  # more than the channel holds


def never_sent(rank: int, size: int) -> None:
    if rank == 0:
        dist.recv(torch.ones(3), 1, tag=5)
    else:
        time.sleep(2.5)


def wrong_length(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(4), 0)


def elsewhere(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(3, device="meta"))


def unfit(rank: int, size: int, what: str) -> None:
    """A collective on a tensor that has no bytes of its own to send, or no place for the result."""
    kind, _, gather = what.partition(" ")
    if kind == "expanded":
        x = torch.ones(1).expand(8)
    elif kind == "quantized":
        x = torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8)
    else:
        x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    if gather and kind == "expanded":
        dist.all_gather([torch.ones(1).expand(8) for _ in range(size)], torch.ones(8))
    elif gather:
        dist.all_gather_into_tensor(torch.quantize_per_tensor(torch.ones(8 * size), 0.1, 0, torch.qint8), x)
    else:
        dist.all_reduce(x)


def forked(rank: int, size: int) -> str:
    """Let a forked child call a collective and leave; the parent's group goes on."""
    dist.all_reduce(torch.ones(3))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except BaseException as error:
            os.write(writer, f"{type(error).__name__} {error}".encode())
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        os._exit(0)
    os.close(writer)
    with open(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    still_works(rank, size)
    return text


def destroyed(rank: int, size: int) -> list[str]:
    """Call methods of a group after it was destroyed."""
    group = dist.new_group(list(range(size)))
    dist.all_reduce(torch.ones(3), group=group)
    dist.destroy_process_group(group)
    later, texts = dist.AllreduceOptions(), []
    later.asyncOp = True
    calls: tuple[Callable[[], Any], ...] = (
        lambda: group.allreduce([torch.ones(3)], dist.AllreduceOptions()),
        lambda: group.allreduce([torch.ones(3)], later),
        lambda: group.allreduce([torch.ones(MANY)], dist.AllreduceOptions()),
        lambda: group.send([torch.ones(3)], (rank + 1) % size),
        lambda: group.recv([torch.ones(3)], (rank + 1) % size),
        lambda: group.barrier(dist.BarrierOptions()),
    )
    for call_late in calls:
        try:
            call_late()
        except BaseException as error:
            texts.append(f"{type(error).__name__} {error}")
        else:
            texts.append("no error")
    return texts


def few_files(rank: int, size: int, path: str) -> None:
    """Rank 0 has no descriptor left when it makes the segment."""
    import lockstep  # noqa: F401
    from lockstep.comm import segment

    original = segment.create

    def create(*args: Any, **kwargs: Any) -> int:
        used = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        try:
            return original(*args, **kwargs)
        finally:
            for descriptor in taken:
                os.close(descriptor)

    if rank == 0:
        segment.create = create
    dist.init_process_group("shm", init_method=f"file://{path}", rank=rank, world_size=size)


def limited(rank: int, size: int, path: str) -> None:
    """Rank 0 may not make large files, which shared memory counts as."""
    import lockstep  # noqa: F401

    if rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    dist.init_process_group("shm", init_method=f"file://{path}", rank=rank, world_size=size)


def own_store(rank: int, size: int, path: str) -> None:
    """A store made by hand, used for one group after the other."""
    store = FileStore(path, size)
    for _ in range(2):
        dist.init_process_group("shm", store=store, rank=rank, world_size=size)
        x = torch.ones(10)
        dist.all_reduce(x)
        assert x[0] == size
        dist.destroy_process_group()


def open_ports(rank: int, size: int) -> list[str]:
    dist.all_reduce(torch.ones(10))
    return [str(c) for c in psutil.Process().net_connections(kind="inet")]


def idle(rank: int, size: int) -> float:
    """Return the processor seconds that a rank used while it waited for another."""
    dist.barrier()
    before = time.process_time()
    if rank == 1:
        time.sleep(2)
    used = time.process_time() if rank == 1 else None
    dist.barrier()
    return (used or time.process_time()) - before


def wait_for_ever(rank: int, size: int) -> None:
    work = dist.all_reduce(torch.ones(MANY), async_op=True)
    assert work is not None
    work.wait()
    if rank == 0:
        time.sleep(100)
    dist.barrier()


def descriptors(rank: int, size: int) -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def groups_come_and_go(rank: int, size: int, count: int) -> None:
    for _ in range(count):
        group = dist.new_group(list(range(size)))
        dist.all_reduce(torch.ones(10), group=group, async_op=True).wait()
        dist.destroy_process_group(group)


def rounds_of(rank: int, size: int, count: int) -> None:
    for step in range(count):
        x = torch.full((100,), float(rank + step))
        dist.all_reduce(x)
        assert x[0] == sum(r + step for r in range(size))


assert collectives  # imported here, so that the patches above reach it
