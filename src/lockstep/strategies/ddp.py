"""`ddp`: a process per worker; the host's workers share one copy of weights, and each updates a slice of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from lockstep.comm.arena import Arena
from lockstep.comm.broadcast import all_gather_text, broadcast_tensors
from lockstep.errors import BadInput
from lockstep.exchange.base import Exchange
from lockstep.exchange.collective import Collective
from lockstep.exchange.hosts import ArenaPerHost, host_arena, ranks_by_host
from lockstep.exchange.in_process import InProcess
from lockstep.exchange.shared_arena import SharedArena
from lockstep.strategies.base import How, StepStats, Strategy, Training, Tuned
from lockstep.strategies.exact_step import ExactWorker, arena_bytes
from lockstep.strategies.load_state import check_slices, load_workers, tuned
from lockstep.strategies.plain_state import Entry, Held, named_state, optimizer_state, optimizer_state_dict, table

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch
    from lockstep.strategies.clock import Clock
    from lockstep.world.place import World


class Exact(Strategy):
    """One worker per process, over some exchange."""

    def __init__(self, world: World, training: Training, exchange: Exchange) -> None:
        super().__init__(world, training)
        self.exchange = exchange
        self.worker = ExactWorker(training, exchange, world.device)

    @property
    def optimizer(self) -> Optimizer:
        """The user's optimizer, over this worker's slices."""
        return self.worker.optimizer

    def step(self, batch: Batch, clock: Clock) -> StepStats:
        """Do the exact step on this worker's lanes."""
        lanes = {lane.lane: lane for lane in batch.lanes if lane.samples}
        filler = next((lane for lane in batch.lanes if not lane.samples), None)
        return self.worker.step(batch.step, lanes, self.lane_loss, filler, clock=clock)

    def how(self) -> How:
        """Say which exchange was chosen, and how the optimizer runs."""
        return self.worker.how

    def table(self) -> list[Entry]:
        """Say what `stream` will yield on rank 0, in order."""
        return table(self.worker)

    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the whole state on every rank, a window at a time."""
        return named_state(self.worker, self._optimizer_state())

    def optimizer_state_dict(self) -> dict[str, object]:
        """Return the state of the plain optimizer; it loads there."""
        return optimizer_state_dict(self.worker, self._optimizer_state())

    def tuned(self) -> list[Tuned]:
        """Return the one optimizer of this worker."""
        return [tuned(self.worker)]

    def check_state(self, held: Mapping[str, Mapping[str, tuple[int, ...]]], where: str) -> None:
        """Refuse state that cannot be cut into slices."""
        check_slices(self.worker, held, where)

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Put a whole state into the flat weights, the buffers, and this worker's slices."""
        load_workers([self.worker], pieces)

    def _optimizer_state(self) -> Iterator[Held]:
        if self.worker.replicated and self.exchange.workers > 1 and self.exchange.shares_memory:
            return self._state_of_the_first()
        return optimizer_state([self.worker], self.exchange.everyone)

    def _state_of_the_first(self) -> Iterator[Held]:
        """Yield rank 0's state: with one copy of the weights it is the only one that updates whole tensors."""
        mine = {f"{one.number}/{one.key}": one.value for one in optimizer_state([self.worker], self.exchange.everyone)}
        for name, value in broadcast_tensors(mine).items():
            index, _, key = name.partition("/")
            yield Held(int(index), key, value)


class DDP(Exact):
    """The arena where ranks share a host and memory, messages between hosts; elsewhere own weights and collectives."""

    name = "ddp"

    def __init__(self, world: World, training: Training) -> None:
        super().__init__(world, training, _exchange(world, training))


def _exchange(world: World, training: Training) -> Exchange:
    if world.size == 1:
        return InProcess(training.units)
    if world.backend == "shm" and world.nodes == 1:
        everyone = dist.distributed_c10d._get_default_group()
        return SharedArena(Arena(everyone, arena_bytes(training, world.size)), training.units)
    if world.nodes > 1 and world.device == "cpu":
        return _over_hosts(world, training)
    return Collective(training.units)


def _over_hosts(world: World, training: Training) -> Exchange:
    """Choose an arena per host where a host has several ranks; if one host refuses it, collectives on all, and why."""
    hosts = ranks_by_host(world.node)
    if len(hosts) == world.size:
        return Collective(training.units)
    mine = next(ranks for ranks in hosts if world.rank in ranks)
    arena, refused = None, ""
    try:
        arena = host_arena(mine, arena_bytes(training, world.size, mine))
    except BadInput as error:
        refused = f"no arena: {error}"
    reasons = [text for text in all_gather_text(refused) if text]
    if arena is None or reasons:
        return Collective(training.units, reasons[0])
    return ArenaPerHost(arena, training.units, hosts)
