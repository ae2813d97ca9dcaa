"""One rank of `lockstep bench ddp`: all ways in one process, so that each repeat sees the same machine."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import lockstep
from lockstep.bench.bench_ddp import LANES
from lockstep.bench.ranks.rank import THREADS, join, serve, settle_compiler, world
from lockstep.bench.ranks.stolen_time import quietest
from lockstep.comm.group import Group
from lockstep.data.loader import Batch, LaneBatch
from lockstep.recipe import Recipe
from lockstep.recipe_file import load
from lockstep.strategies.torch_ddp.strategy import best_settings
from lockstep.train.malloc import keep_freed_memory
from lockstep.train.result import gather

SAMPLES_PER_TURN, MEMORY_STEPS = 2, 4
Step = Callable[[], object]


def small_tensors() -> Recipe:
    """Return a model of 500 small tensors: what costs there is the handling of each."""

    def model() -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(250)))

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(1024, 32, generator=generator), torch.randn(1024, 32, generator=generator))
    return Recipe(
        model=model, data=data, loss=loss, optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-3), global_batch=64
    )


def make_step(way: str, recipe: Recipe, place: lockstep.World, groups: dict[str, Any]) -> Step:
    """Return a training step on this rank's share of the next global batch."""
    if way.startswith("lockstep ddp"):
        each = LANES // place.size if "lanes" in way else 1  # else as many lanes as workers
        return own_step(recipe, place, each, exact="inexact" not in way)
    torch.manual_seed(0)
    model: nn.Module = recipe.model()
    if way != "no communication":
        group = groups[way.rpartition(" ")[2]]
        if way.startswith("torch"):
            model = DistributedDataParallel(model, process_group=group, **best_settings())
        else:
            exact = "exact" in way
            model = lockstep.nn.DistributedDataParallel(model, process_group=group, exact=exact)
    return stock_step(model, recipe, place)


def shares(recipe: Recipe, place: lockstep.World) -> Iterator[list[Tensor]]:
    """Yield this rank's samples of one global batch after the other, without end.

    Not of one batch again and again: a model learns that by heart, and then computes with denormal numbers, which takes
    a CPU three times as long and is no training.
    """
    share = recipe.global_batch // place.size
    tensors = recipe.dataset().tensors
    first = place.rank * share
    starts = range(first, len(tensors[0]) - recipe.global_batch + first + 1, recipe.global_batch)
    return itertools.cycle([[tensor[start : start + share] for tensor in tensors] for start in starts])


def own_step(recipe: Recipe, place: lockstep.World, each: int, *, exact: bool) -> Step:
    """Return a training step of our `ddp`, with so many lanes on each worker."""
    trainer = lockstep.Trainer(
        place, recipe.model, recipe.optimizer, recipe.loss, strategy="ddp", lanes=each * place.size, exact=exact
    )
    samples = recipe.global_batch // place.size // each
    data = shares(recipe, place)

    def step() -> object:
        cut = zip(*(tensor.chunk(each) for tensor in next(data)), strict=True)
        lanes = [LaneBatch(place.rank * each + i, samples, list(lane)) for i, lane in enumerate(cut)]
        return trainer.step(Batch(0, 0, recipe.global_batch, tuple(lanes)))

    return step


def stock_step(model: nn.Module, recipe: Recipe, place: lockstep.World) -> Step:
    """Return a training step as PyTorch's tutorials write it."""
    optimizer = recipe.optimizer(model.parameters())
    data = shares(recipe, place)

    def step() -> None:
        loss = recipe.loss(model, next(data))
        assert isinstance(loss, Tensor)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def time_steps(steps: dict[str, Step], turns: int) -> dict[str, list[float]]:
    """Time each way in turn; the first steps of each warm it up (torch DDP rebuilds its buckets then)."""
    for step in steps.values():
        for _ in range(3):
            step()
    seconds: dict[str, list[float]] = {way: [] for way in steps}
    ways, order = list(steps.items()), random.Random(0)  # noqa: S311 - the same on every rank
    for _ in range(turns):
        order.shuffle(ways)
        for way, step in ways:
            seconds[way] += quietest(partial(_turn, step))
    return seconds


def _turn(step: Step) -> list[float]:
    dist.barrier()
    step()  # finds the caches full of another way's weights
    times = []
    for _ in range(SAMPLES_PER_TURN):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return times


def measure(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the slowest rank's seconds of every sample, or the memory of all ranks."""
    torch.set_num_threads(THREADS)
    settle_compiler(memory=bool(plan.get("memory")))
    if not plan.get("memory"):
        keep_freed_memory()  # as the trainer does by itself; else page faults decide which way is faster, by luck
    before = psutil.Process().memory_full_info().pss
    join(plan, "shm")
    groups = {"shm": dist.group.WORLD, "gloo": dist.new_group(list(range(plan["workers"])), backend="gloo")}
    place = world(plan, "shm")
    recipe = small_tensors() if plan["model"].startswith("500") else load(plan["model"])
    # What is made first lies elsewhere in memory, and is faster or slower for it: so starts go there and back.
    ways = plan["ways"][:: -1 if plan.get("start", 0) % 2 else 1]
    steps = {way: make_step(way, recipe, place, groups) for way in ways}
    if plan.get("memory"):
        for _ in range(MEMORY_STEPS):
            steps[plan["ways"][0]]()
        dist.barrier()
        rows = gather(Group.everyone(), [float(psutil.Process().memory_full_info().pss - before)])
        return {"memory": sum(row[0] for row in rows)}
    seconds = time_steps(steps, plan["turns"])
    slowest = {way: zip(*gather(Group.everyone(), times), strict=True) for way, times in seconds.items()}
    return {"seconds": {way: [max(ranks) for ranks in rows] for way, rows in slowest.items()}}


if __name__ == "__main__":
    serve(measure)
