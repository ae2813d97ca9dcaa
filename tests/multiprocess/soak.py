"""A long random sequence of collectives and messages, every result checked; all ranks draw the same sequence."""

from __future__ import annotations

import gc
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

SIZES = (0, 1, 7, 64, 1000, 16_384, 16_385, 40_000, 300_000)
WEIGHTS = (1, 4, 6, 10, 10, 6, 6, 2, 1)


@dataclass(frozen=True)
class Weight:
    """What a process holds on to."""

    descriptors: int
    threads: int
    resident: int


def weigh() -> Weight:
    gc.collect()
    process = psutil.Process()
    return Weight(len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), process.memory_info().rss)


def _value(rank: int, step: int) -> float:
    return float((rank * 31 + step * 7) % 97)


class Soak:
    """One rank's side."""

    def __init__(self, rank: int, size: int, seed: int) -> None:
        self.rank, self.size = rank, size
        self.draw = random.Random(seed)
        self.pending: list[tuple[dist.Work, torch.Tensor, float]] = []
        self.half = dist.new_group(list(range(size)))

    def total(self, step: int) -> float:
        return sum(_value(r, step) for r in range(self.size))

    def step(self, step: int) -> None:
        kinds = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "message", "barrier", "later")
        kind = self.draw.choices(kinds, (8, 4, 4, 3, 3, 3, 2, 4))[0]
        count = self.draw.choices(SIZES, WEIGHTS)[0]
        root = self.draw.randrange(self.size)
        group = self.draw.choice((None, self.half))
        mine = torch.full((count,), _value(self.rank, step))
        getattr(self, kind)(step, count, root, group, mine)

    def all_reduce(self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor) -> None:
        dist.all_reduce(mine, group=group)
        self.check(mine, self.total(step), step)

    def later(self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor) -> None:
        work = dist.all_reduce(mine, group=group, async_op=True)
        assert work is not None
        self.pending.append((work, mine, self.total(step)))
        if len(self.pending) > 5:
            self.settle(step)

    def settle(self, step: int) -> None:
        for work, tensor, expected in self.pending:
            work.wait()
            self.check(tensor, expected, step)
        self.pending.clear()

    def broadcast(self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor) -> None:
        dist.broadcast(mine, root, group=group)
        self.check(mine, _value(root, step), step)

    def all_gather(self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor) -> None:
        outputs = [torch.empty(count) for _ in range(self.size)]
        dist.all_gather(outputs, mine, group=group)
        for rank, output in enumerate(outputs):
            self.check(output, _value(rank, step), step)

    def reduce_scatter(
        self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor
    ) -> None:
        output = torch.empty(count)
        dist.reduce_scatter(output, [mine + to for to in range(self.size)], group=group)
        self.check(output, self.total(step) + self.size * self.rank, step)

    def all_to_all(self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor) -> None:
        outputs = [torch.empty(count) for _ in range(self.size)]
        dist.all_to_all(outputs, [mine + to for to in range(self.size)], group=group)
        for rank, output in enumerate(outputs):
            self.check(output, _value(rank, step) + self.rank, step)

    def message(self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor) -> None:
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        received = torch.empty(count)
        operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, received, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        self.check(received, _value(left, step), step)

    def barrier(self, step: int, count: int, root: int, group: dist.ProcessGroup | None, mine: torch.Tensor) -> None:
        dist.barrier(group=group)

    def check(self, tensor: torch.Tensor, expected: float, step: int) -> None:
        assert bool((tensor == expected).all()), f"rank {self.rank}, step {step}: {tensor} is not {expected}"


def mixed(rank: int, size: int, seed: int, count: int) -> tuple[Weight, Weight]:
    """Run `count` operations; return what the process held after a tenth of them and at the end."""
    soak = Soak(rank, size, seed)
    early = weigh()
    for step in range(count):
        soak.step(step)
        if step == count // 10:
            soak.settle(step)
            early = weigh()
    soak.settle(count)
    late = weigh()
    dist.destroy_process_group(soak.half)
    return early, late
