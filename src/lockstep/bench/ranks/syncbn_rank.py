"""One rank of `lockstep bench syncbn`: every way of every shape, in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import lockstep  # noqa: F401 - registers the backend "shm"
from lockstep.bench.ranks.rank import join, serve, tell
from lockstep.bench.ranks.syncbn_by_hand import ByHand
from lockstep.nn import SyncBatchNorm
from lockstep.nn.row_gather import RowGather
from lockstep.torch_compat.distributed import ALL_GATHER_SINGLE
from lockstep.torch_compat.profiler import most_memory

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BACKENDS: tuple[str, ...] = ("gloo", "shm")
Step = Callable[[], None]
Column = tuple[str, str]
"""Who and on which backend."""


def measure(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a step of each way takes and needs, by shape."""
    rank, size = plan["rank"], plan["workers"]
    join(plan, "gloo")
    groups: dict[str, ProcessGroup] = {
        name: dist.new_group(backend=name) for name in BACKENDS if name in dist.Backend.backend_list
    }
    devices: dict[str, str] = dict.fromkeys(groups, "cpu")
    if torch.accelerator.is_available() and torch.accelerator.device_count() >= size:
        kind = str(torch.accelerator.current_accelerator())
        torch.accelerator.set_device_index(rank)
        name = dist.get_default_backend_for_device(kind)
        groups[name] = dist.new_group(backend=name)
        devices[name] = f"{kind}:{rank}"
    measured = []
    for entry in plan["shapes"]:
        tell(plan, f"input {' x '.join(map(str, entry['shape']))}, {entry['steps']} steps of each way")
        runs = entry["steps"] // plan["rounds"]
        measured.append(_shape(tuple(entry["shape"]), groups, devices, runs, plan["rounds"]))
    return measured


def _shape(
    shape: tuple[int, ...], groups: dict[str, ProcessGroup], devices: dict[str, str], runs: int, rounds: int
) -> dict[str, Any]:
    """Measure one shape: what a step needs first, then the times, every column in turn."""
    steps = _columns(shape, groups, devices)
    needs = {column: _needs(step) for column, step in steps.items()}
    times: dict[Column, list[float]] = {column: [] for column in steps}
    for _ in range(rounds):
        for column, step in steps.items():
            dist.barrier()
            for number in range(runs + 3):
                began = time.perf_counter()
                step()
                if number >= 3:
                    times[column].append(time.perf_counter() - began)
    rows = []
    for (who, backend), needed in needs.items():
        low, middle, high = statistics.quantiles(_slowest(times[who, backend]), n=4)
        rows.append({"who": who, "backend": backend, "seconds": middle, "quartiles": [low, high], **needed})
    return {"shape": list(shape), "runs": runs * rounds, "ways": rows}


def _slowest(seconds: list[float]) -> list[float]:
    """Return each step's time on its slowest rank: that is when a step is over, also where ranks do not meet."""
    mine = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return mine.tolist()


def _columns(shape: tuple[int, ...], groups: dict[str, ProcessGroup], devices: dict[str, str]) -> dict[Column, Step]:
    channels = shape[1]
    local = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    steps = {("local", device): _step(local(channels), shape, device) for device in sorted(set(devices.values()))}
    for backend, group in groups.items():
        device = devices[backend]
        steps["by hand", backend] = _step(ByHand(channels, group), shape, device)
        if device != "cpu":
            steps["torch", backend] = _step(nn.SyncBatchNorm(channels, process_group=group), shape, device)
        steps["ours", backend] = _step(SyncBatchNorm(channels, group=group), shape, device)
    return steps


def _step(layer: nn.Module, shape: tuple[int, ...], device: str) -> Step:
    """Return a forward with its backward, on data of its own."""
    layer.to(device)
    x = torch.randn(shape, device=device, requires_grad=True)
    grad = torch.randn(shape, device=device)
    wanted = (x, *layer.parameters())

    def step() -> None:
        torch.autograd.grad(layer(x), wanted, grad)
        if device != "cpu":
            torch.accelerator.synchronize()

    return step


def _needs(step: Step) -> dict[str, int]:
    """Return the most memory that a step holds at once, and what it sends, from steps that are not timed."""
    for _ in range(3):
        step()
    sent: list[int] = []
    with _Counting(sent):
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    return {"bytes": most_memory(seen), "collectives": len(sent), "sent": sum(sent)}


class _Counting:
    """Notes the bytes that a rank hands over, at the calls that all columns go through."""

    def __init__(self, sent: list[int]) -> None:
        self.sent = sent
        places: list[tuple[Any, str, int]] = [(dist, ALL_GATHER_SINGLE, 1), (dist, "all_reduce", 0)]
        places.append((RowGather, "gather", 1))
        self.patched = [(owner, name, getattr(owner, name), position) for owner, name, position in places]

    def __enter__(self) -> None:
        for owner, name, stock, position in self.patched:
            setattr(owner, name, self._noting(stock, position))

    def __exit__(self, *_: object) -> None:
        for owner, name, stock, _position in self.patched:
            setattr(owner, name, stock)

    def _noting(self, stock: Callable[..., Any], position: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            tensor: Tensor = arguments[position]
            self.sent.append(tensor.nbytes)
            return stock(*arguments, **options)

        return call


if __name__ == "__main__":
    serve(measure)
