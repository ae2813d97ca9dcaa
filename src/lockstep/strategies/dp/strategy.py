"""`dp`: one process, a thread per worker; the interpreter's lock is what limits it.

On the CPU all threads share one copy of the weights. On accelerators each has a device with a copy of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from lockstep.data.loader import LaneBatch
from lockstep.errors import BadInput
from lockstep.exchange.in_process import InProcess
from lockstep.exchange.per_device import PerDevice
from lockstep.lanes.own_generator import OwnGenerator
from lockstep.lanes.rng import lane_seed, seed_device
from lockstep.lanes.schedule import owned_lanes
from lockstep.strategies.base import How, LaneLoss, StepStats, Strategy, Training, Tuned
from lockstep.strategies.clock import Clock, NoClock
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.load_state import check_slices, load_workers, tuned
from lockstep.strategies.worker_state import worker_holdings

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch
    from lockstep.mesh import Mesh
    from lockstep.state.holdings import Holding
    from lockstep.strategies.limits import Asked

Result = TypeVar("Result")


class DP(Strategy):
    """Each thread has a copy of the model: its weights are views of the same memory, or are on the thread's device."""

    reads_later = True

    def __init__(self, mesh: Mesh, training: Training) -> None:
        super().__init__(mesh, training)
        self._devices = thread_devices(mesh.world.device, training.workers)
        self._common = InProcess.Common(training.workers)
        self._threads = ThreadPoolExecutor(training.workers, "lockstep dp")
        copies = [training.model, *(copy.deepcopy(training.model).to(device) for device in self._devices[1:])]
        self._places = {id(model): device for model, device in zip(copies, self._devices, strict=True)}
        self._generators = [torch.Generator() for _ in copies]
        self.workers: list[ExactWorker] = self._together(lambda rank: self._worker(rank, copies[rank]))

    @property
    def optimizer(self) -> Optimizer:
        """The first thread's optimizer, over its slices; the others have the same settings."""
        return self.workers[0].optimizer

    def step(self, batch: Batch, clock: Clock) -> StepStats:
        """Let every thread do its side of the exact step; the report shows the first thread's clock."""
        lanes = {lane.lane: lane for lane in batch.lanes if lane.samples}
        for worker in self.workers:
            worker.training.model.train(self.training.model.training)
        clocks = [clock, *(NoClock() for _ in self.workers[1:])]

        def work(rank: int) -> StepStats:
            return self.workers[rank].step(batch.step, lanes, self._forward(rank), clock=clocks[rank])

        stats = self._together(work)[0]
        clock.lap("wait")  # until the last thread is done
        return stats

    def how(self) -> How:
        """Say how the optimizer runs; the threads share everything."""
        return self.workers[0].how

    def holdings(self) -> list[Holding]:
        """Answer for every thread's slices."""
        return [holding for worker in self.workers for holding in worker_holdings(worker)]

    def tuned(self) -> list[Tuned]:
        """Return every thread's optimizer."""
        return [tuned(worker) for worker in self.workers]

    def check_state(self, held: Mapping[str, Mapping[str, tuple[int, ...]]], where: str) -> None:
        """Refuse state that cannot be cut into slices."""
        check_slices(self.workers[0], held, where)

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Put a whole state into the one copy of the weights, and into every thread's buffers and slices."""
        load_workers(self.workers, pieces)

    def device_of(self, model: nn.Module) -> str:
        """Return the device of the thread that has this copy."""
        return self._places.get(id(model), self.world.device)

    def lane_device(self, lane: int) -> str:
        """Return the device of the thread that has this lane."""
        owned = (owned_lanes(self.training.lanes, self.training.workers, rank) for rank in range(len(self._devices)))
        return next(device for device, lanes in zip(self._devices, owned, strict=True) if lane in lanes)

    def _worker(self, rank: int, model: nn.Module) -> ExactWorker:
        kind = InProcess if self.world.device == "cpu" else PerDevice
        exchange = kind(self.training.units, self.training.workers, rank, self._common)
        return ExactWorker(replace(self.training, model=model), exchange, self._devices[rank])

    def _forward(self, rank: int) -> Callable[[nn.Module, LaneBatch, int], LaneLoss]:
        def forward(model: nn.Module, lane: LaneBatch, step: int) -> LaneLoss:
            generator, seed = self._generators[rank], lane_seed(self.training.seed, step, lane.lane)
            generator.manual_seed(seed)
            if self.world.device != "cpu":
                seed_device(seed, self._devices[rank])
            with OwnGenerator(generator):
                return self.checked_loss(model, lane, step)

        return forward

    def _together(self, work: Callable[[int], Result]) -> list[Result]:
        """Run a function for every rank at once; the first error of its own wins, and wakes the others."""

        def guarded(rank: int) -> Result:
            try:
                if self.world.device != "cpu":
                    torch.accelerator.set_device_index(torch.device(self._devices[rank]).index)
                return work(rank)
            except BaseException:
                self._common.barrier.abort()
                raise

        futures = [self._threads.submit(guarded, rank) for rank in range(self.training.workers)]
        wait(futures)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._threads.shutdown()  # the barrier is broken for good, and so is this strategy
        for error in errors:
            if not isinstance(error, BrokenBarrierError):
                raise error
        return [future.result() for future in futures]


def limits(asked: Asked) -> None:
    """Refuse fewer devices than threads."""
    if asked.device is not None:
        thread_devices(asked.device, asked.settings.workers)


def thread_devices(first: str, workers: int) -> list[str]:
    """Return each thread's device: the CPU for all, or the device of the process and those that follow it."""
    if first == "cpu":
        return [first] * workers
    place, count = torch.device(first), torch.accelerator.device_count()
    start = place.index or 0
    if start + workers > count:
        raise BadInput(
            f"strategy dp needs a device for each of its {workers} workers, and there are {count - start} from "
            f"{place.type}:{start} on: use --workers {count - start}, or --device cpu"
        )
    return [f"{place.type}:{index}" for index in range(start, start + workers)]
