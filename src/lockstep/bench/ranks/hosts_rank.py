"""One rank of `lockstep bench hosts`: all ways in one process, so that each repeat sees the same machine and wire."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep
from lockstep.bench.bench_hosts import ALONE, BUCKETS, MESSAGES, OURS, stock
from lockstep.bench.ranks.ddp_rank import Step, make_step, stock_step, time_steps
from lockstep.bench.ranks.namespaces import WIRE
from lockstep.bench.ranks.rank import THREADS, join, serve, settle_compiler, world
from lockstep.comm.group import Group
from lockstep.recipe import Recipe
from lockstep.recipe_file import load
from lockstep.strategies.base import StepStats
from lockstep.strategies.overlapped_step import PIECE
from lockstep.strategies.torch_ddp.strategy import best_settings
from lockstep.train.malloc import keep_freed_memory
from lockstep.train.result import gather

STATISTICS = Path("/sys/class/net") / WIRE / "statistics"
COUNTED_STEPS = 4


def stock_on(recipe: Recipe, place: lockstep.World, megabytes: int) -> Step:
    """Return a step of torch DDP with buckets of this size."""
    torch.manual_seed(0)
    model: nn.Module = DistributedDataParallel(recipe.model(), bucket_cap_mb=megabytes, **best_settings())
    return stock_step(model, recipe, place)


def messages_alone(numel: int, place: lockstep.World) -> Step:
    """Return the traffic of a step without the step: between two hosts, each rank with one of the other."""
    peer, numel = (place.rank + place.size // 2) % place.size, numel // (place.size // 2)
    gone, come = (torch.split(torch.zeros(numel), PIECE) for _ in range(2))

    def step() -> None:
        works = [dist.irecv(one, peer) for one in come] + [dist.isend(one, peer) for one in gone]
        for work in works:
            assert work is not None
            work.wait()

    return step


def measure(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the slowest rank's seconds of every sample, and what our exchange sends and hides."""
    torch.set_num_threads(THREADS)
    settle_compiler(memory=False)
    keep_freed_memory()
    join(plan, "gloo")
    place, recipe = world(plan, "gloo"), load(plan["model"])
    stats: list[StepStats] = []
    steps: dict[str, Step] = {ALONE: make_step(ALONE, recipe, place, {})}
    steps |= {stock(size): stock_on(recipe, place, size) for size in BUCKETS}
    parameters = list(recipe.model().parameters())
    steps[MESSAGES] = messages_alone(sum(p.numel() for p in parameters), place)
    ours = make_step(OURS, recipe, place, {})
    steps[OURS] = lambda: stats.append(ours())  # type: ignore[arg-type]
    seconds = time_steps(steps, plan["turns"])
    slowest = {way: zip(*gather(Group.everyone(), times), strict=True) for way, times in seconds.items()}
    hidden = statistics.median(one.hidden / (one.hidden + one.seconds["exchange"]) for one in stats[3:])
    return {
        "seconds": {way: [max(ranks) for ranks in rows] for way, rows in slowest.items()},
        "gradients": sum(p.numel() * p.element_size() for p in parameters),
        "bytes": {OURS: _bytes(ours), stock(BUCKETS[-1]): _bytes(steps[stock(BUCKETS[-1])])},
        "hidden": hidden,
    }


def _bytes(step: Step) -> float:
    """Return how many bytes a host puts on the wire in a step: the busier way."""
    dist.barrier()
    before = _counters()
    for _ in range(COUNTED_STEPS):
        step()
    dist.barrier()
    return max(now - then for now, then in zip(_counters(), before, strict=True)) / COUNTED_STEPS


def _counters() -> list[int]:
    return [int((STATISTICS / name).read_text()) for name in ("tx_bytes", "rx_bytes")]


if __name__ == "__main__":
    serve(measure)
