"""One rank of `lockstep bench pipeline`: all ways of a model in one process, in turn; or the memory of one way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.bench.bench_pipeline import ALONE, LANES, NARROW, UPDATE, TrainedWay
from lockstep.bench.ranks.deep_models import DeepModel, deep_model, optimizer
from lockstep.bench.ranks.rank import THREADS, join, serve, settle_compiler, world
from lockstep.bench.ranks.stolen_time import quietest
from lockstep.comm.group import Group
from lockstep.lanes.schedule import owned_lanes
from lockstep.mesh import Mesh
from lockstep.registry import STRATEGIES
from lockstep.stages.chain import find_layers
from lockstep.strategies import find
from lockstep.strategies.base import Strategy, Training
from lockstep.strategies.clock import NoClock
from lockstep.train.malloc import keep_freed_memory
from lockstep.train.result import gather
from lockstep.train.trainer import own_settings

STEPS_PER_TURN, MEMORY_STEPS = 3, 3
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Step = Callable[[], dict[str, float] | None]
"""Does one step; a step of several parts says how long each took, by name."""


def mesh_of(plan: dict[str, Any], way: TrainedWay, groups: dict[str, Any]) -> Mesh:
    """Return the mesh of a way: all ranks as stages, or as replicas."""
    place = world(plan, way.backend if plan["workers"] > 1 else None)
    alone = Group.alone(place.rank)
    everyone = Group.of(groups[way.backend]) if place.size > 1 else alone
    staged = STRATEGIES.get(way.strategy).staged
    return Mesh(
        world=place,
        stages=place.size if staged else 1,
        everyone=everyone,
        across_replicas=alone if staged else everyone,
        across_stages=everyone if staged else alone,
        toward_first=everyone if staged else alone,
    )


def make_strategy(way: TrainedWay, deep: DeepModel, mesh: Mesh) -> tuple[Strategy, Step]:
    """Return a way's strategy and its step on this rank's lanes."""
    asked = {
        "strategy": way.strategy,
        "lanes": way.lanes,
        "seed": 0,
        "pipeline_schedule": way.schedule,
        "measure": False,
        **({"stages": mesh.stages, "cut": str(deep.cut)} if mesh.stages > 1 else {}),
    }
    torch.manual_seed(0)
    training = Training(
        model=deep.model(),
        optimizer=optimizer,
        loss=deep.loss,
        settings=own_settings(mesh.world.size).changed(asked),
        layers=deep.layers,
        example=lambda: deep.samples(deep.global_batch // way.lanes),
    )
    strategy = find(way.strategy)(mesh, training)
    strategy.module.train()
    own = owned_lanes(way.lanes, mesh.replicas, mesh.replica, in_turn=strategy.lanes_in_turn)
    batch = deep.step(lane for lane in deep.lanes(way.lanes) if lane.lane in own)

    def step() -> None:
        strategy.step(batch, NoClock())

    return strategy, step


def stage_alone(deep: DeepModel, stage: int) -> Step:
    """Return the work of one stage by itself, in plain PyTorch: what all lanes take, and the update.

    What the other stage would send is there: activations, and the gradients of what this stage returns.
    """
    torch.manual_seed(0)
    model = deep.model()
    layers = [layer.call for layer in find_layers(model, deep.layers, None)]
    lanes = deep.lanes(LANES)
    handed: list[tuple[Tensor, Tensor]] = []
    for lane in lanes:
        with torch.no_grad():
            value = _through(layers[: deep.cut], _argument(deep, lane.data))
        handed.append((value.requires_grad_(), torch.randn_like(value)))
    used = optimizer(model.parameters())

    def step() -> dict[str, float]:
        began = time.perf_counter()
        for lane, (value, gradient) in zip(lanes, handed, strict=True):
            if stage == 0:
                torch.autograd.backward(_through(layers[: deep.cut], _argument(deep, lane.data)), gradient)
                continue
            value.grad = None
            loss = deep.loss(_Ended(_through(layers[deep.cut :], value)), lane.data)
            torch.autograd.backward((loss if isinstance(loss, Tensor) else loss.total) / LANES)
        done = time.perf_counter()
        used.step()
        used.zero_grad(set_to_none=True)
        return {ALONE: done - began, UPDATE: time.perf_counter() - done}

    return step


class _Ended(nn.Module):
    """A model whose output is already there."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: Any) -> Tensor:
        return self.output


class _Asked(nn.Module):
    """Keeps what a loss function passes to the model."""

    def forward(self, value: Tensor) -> Tensor:
        raise StopIteration(value)


def _argument(deep: DeepModel, data: Any) -> Tensor:
    try:
        deep.loss(_Asked(), data)
    except StopIteration as asked:
        value: Tensor = asked.value
        return value
    raise AssertionError("a loss function calls its model")


def _through(layers: list[Callable[..., Any]], value: Any) -> Any:
    for layer in layers:
        value = layer(value)
    return value


def time_steps(steps: dict[str, Step], turns: int, warm_up: int) -> dict[str, list[float]]:
    """Time each way in turn; its first step of a turn finds the caches full of another way's weights.

    The steps of a turn are timed together: where ranks do not meet after each, one may be behind in one step and ahead
    in the next, which is no time lost.
    """
    for step in steps.values():
        for _ in range(warm_up):
            step()
    seconds: dict[str, list[float]] = {}
    ways, order = list(steps.items()), random.Random(0)  # noqa: S311 - the same on every rank
    for _ in range(turns):
        order.shuffle(ways)
        for way, step in ways:
            for name, took in quietest(partial(_turn, way, step)).items():
                seconds.setdefault(name, []).append(took)
    return seconds


def _turn(way: str, step: Step) -> dict[str, float]:
    dist.barrier()
    step()
    began = time.perf_counter()
    parts = [step() for _ in range(STEPS_PER_TURN)]
    took = (time.perf_counter() - began) / STEPS_PER_TURN
    told = [part for part in parts if part]
    return {name: sum(part[name] for part in told) / len(told) for name in told[0]} if told else {way: took}


def measure(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the slowest rank's seconds of every sample, or each rank's memory before and at its peak."""
    torch.set_num_threads(THREADS)
    settle_compiler(memory=bool(plan.get("memory")))
    ways = [TrainedWay(**one) for one in plan["ways"]]
    for way in ways:
        find(way.strategy)  # its imports belong to the baseline too
    deep = deep_model(plan["model"], quick=plan["quick"])
    if plan.get("memory"):
        return {"memory": _memory(plan, ways[0], deep)}
    keep_freed_memory()  # as the trainer does by itself
    groups = _groups(plan)
    # What is made first lies elsewhere in memory, and is faster or slower for it: so starts go there and back.
    steps: dict[str, Step] = {} if plan["model"] == NARROW else {ALONE: stage_alone(deep, plan["rank"])}
    for way in ways[:: -1 if plan["start"] % 2 else 1]:
        steps[way.name] = make_strategy(way, deep, mesh_of(plan, way, groups))[1]
    seconds = time_steps(steps, plan["turns"], plan["warm_up"])
    slowest = {way: zip(*gather(Group.everyone(), times), strict=True) for way, times in seconds.items()}
    return {"seconds": {way: [max(ranks) for ranks in rows] for way, rows in slowest.items()}}


def _groups(plan: dict[str, Any]) -> dict[str, Any]:
    """Meet the other ranks, over gloo and over shared memory."""
    join(plan, "gloo")
    return {"gloo": dist.group.WORLD, "shm": dist.new_group(list(range(plan["workers"])), backend="shm")}


def _memory(plan: dict[str, Any], way: TrainedWay, deep: DeepModel) -> list[list[float]]:
    """Return each rank's bytes: before anything was made, and the most since then."""
    groups = _groups(plan)
    CLEAR.write_text("5")  # the peak counts from here on
    before = _status("VmRSS")
    _strategy, step = make_strategy(way, deep, mesh_of(plan, way, groups))
    for _ in range(MEMORY_STEPS):
        step()
    return gather(Group.everyone(), [before, _status("VmHWM")])


def _status(name: str) -> float:
    """Return a number of bytes that the kernel keeps of this process."""
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:"))
    return 1024.0 * int(line.split()[1])


if __name__ == "__main__":
    serve(measure)
