"""One rank of `lockstep bench collectives`: both backends in one process, so that each repeat sees the same machine."""

from __future__ import annotations

import statistics
import time
from ctypes import memmove
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep  # noqa: F401 - registers shm
from lockstep.bench.bench_collectives import DDP, WAYS
from lockstep.bench.ranks.rank import join, serve, tell
from lockstep.comm.arena import Arena
from lockstep.recipes.mlp import CLASSES, FEATURES, make_model
from lockstep.strategies.torch_ddp.strategy import best_settings

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 32
SAMPLE_SECONDS = 0.15
"""About as long as one sample takes. The way before it leaves the ranks on any cores, three of four on one of two, and
the system needs some hundredths of a second to spread them again: shorter samples would time that."""
MOST_CALLS = 500


class Samples:
    """Seconds of one call, by size and way, on this rank."""

    def __init__(self, meet: Callable[[], None]) -> None:
        self._meet = meet
        self._calls: dict[tuple[int, str], int] = {}
        self.seconds: dict[tuple[int, str], list[float]] = {}

    def take(self, size: int, way: str, call: Callable[[], object]) -> None:
        """Time some calls that all ranks make at once and keep their median; the first ever are not counted."""
        key = (size, way)
        if key not in self._calls:
            call()
            self._calls[key] = _calls(statistics.median(self._times(call, 3)))
        times = self._times(call, self._calls[key])
        self.seconds.setdefault(key, []).append(statistics.median(times))

    def _times(self, call: Callable[[], object], calls: int) -> list[float]:
        self._meet()
        times = []
        for _ in range(calls):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return times


def _calls(seconds: float) -> int:
    """Return how many calls of so many seconds make one sample, the same on all ranks."""
    slowest = torch.tensor(seconds)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(1, min(MOST_CALLS, round(SAMPLE_SECONDS / float(slowest))))


def _all_reduce(size: int, gloo: Any, shm: Any, arena: Arena) -> dict[str, Callable[[], object]]:
    count = size // 4
    plain = {way: torch.ones(count) for way in ("gloo", "shm")}
    shared, target = arena.per_rank(count), arena.per_rank(count)
    mine, copied = shared[arena.rank], target[arena.rank]
    mine.fill_(1.0)
    copied.fill_(1.0)
    return {
        "gloo": lambda: dist.all_reduce(plain["gloo"], group=gloo),
        "shm": lambda: dist.all_reduce(plain["shm"], group=shm),
        "shm in place": lambda: arena.all_reduce(shared),
        "copy limit": lambda: memmove(copied.data_ptr(), mine.data_ptr(), size),
    }


def _ddp_step(group: Any) -> tuple[int, Callable[[], object]]:
    """Return the bytes of all gradients, and a training step of stock DDP at its best setting."""
    torch.manual_seed(0)
    net = make_model()
    model = DistributedDataParallel(net, process_group=group, **best_settings())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(BATCH, FEATURES), torch.randint(CLASSES, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return sum(p.numel() * 4 for p in net.parameters()), step


def _samples(plan: dict[str, Any]) -> Samples:
    shm = dist.new_group(list(range(plan["workers"])), backend="shm")
    gloo = dist.group.WORLD
    sizes: list[int] = plan["sizes"]
    room = sum(2 * plan["workers"] * Arena.room(size // 4, torch.float32) for size in sizes)
    arena = Arena(shm, room)
    samples = Samples(arena.barrier)
    ways = {size: _all_reduce(size, gloo, shm, arena) for size in sizes}
    steps = dict(zip(DDP, (_ddp_step(group) for group in (gloo, shm)), strict=True))
    for repeat in range(plan["repeats"]):
        tell(plan, f"{plan['workers']} workers: repeat {repeat + 1} of {plan['repeats']}")
        for size in sizes:
            for way in WAYS:
                samples.take(size, way, ways[size][way])
        for way, (size, step) in steps.items():
            samples.take(size, way, step)
    return samples


def measure(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the slowest rank's seconds of every sample."""
    join(plan, "gloo")
    samples = _samples(plan)
    everyone: list[Any] = [None] * plan["workers"]
    dist.all_gather_object(everyone, samples.seconds)
    timed = []
    for size, way in samples.seconds:
        by_sample = zip(*(seconds[(size, way)] for seconds in everyone), strict=True)
        timed.append({"size": size, "way": way, "seconds": [max(ranks) for ranks in by_sample]})
    return timed


if __name__ == "__main__":
    serve(measure)
