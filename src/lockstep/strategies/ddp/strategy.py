"""`ddp`: a process per worker; the host's workers share one copy of weights, and each updates a slice of it.

Between hosts, a small model is updated whole by one worker of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from lockstep.comm.arena import Arena
from lockstep.comm.broadcast import all_gather_text
from lockstep.errors import BadInput
from lockstep.exchange.base import Exchange
from lockstep.exchange.collective import Collective
from lockstep.exchange.hosts import ArenaPerHost, host_arena, hosts_alike, ranks_by_host
from lockstep.exchange.in_process import InProcess
from lockstep.exchange.shared_arena import SharedArena
from lockstep.strategies.arena_size import arena_bytes
from lockstep.strategies.base import How, StepStats, Strategy, Training, Tuned
from lockstep.strategies.bucketed_step import BucketedWorker
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.load_state import check_slices, load_workers, tuned
from lockstep.strategies.one_message_step import OneMessageWorker, small_enough
from lockstep.strategies.overlapped_step import OverlappedWorker
from lockstep.strategies.worker_state import worker_holdings

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.comm.group import Group
    from lockstep.data.loader import Batch
    from lockstep.mesh import Mesh
    from lockstep.state.holdings import Holding
    from lockstep.strategies.clock import Clock


class Exact(Strategy):
    """One worker per process, over some exchange."""

    reads_later = True

    def __init__(self, mesh: Mesh, training: Training, exchange: Exchange) -> None:
        super().__init__(mesh, training)
        self.exchange = exchange
        self.worker = make_worker(training, exchange, mesh.world.device)

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

    def holdings(self) -> list[Holding]:
        """Answer for this worker's slices."""
        return worker_holdings(self.worker)

    def tuned(self) -> list[Tuned]:
        """Return the one optimizer of this worker."""
        return [tuned(self.worker)]

    def check_state(self, held: Mapping[str, Mapping[str, tuple[int, ...]]], where: str) -> None:
        """Refuse state that cannot be cut into slices."""
        check_slices(self.worker, held, where)

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Put a whole state into the flat weights, the buffers, and this worker's slices."""
        load_workers([self.worker], pieces)


def make_worker(training: Training, exchange: Exchange, device: str) -> ExactWorker:
    """Return a worker that exchanges during backward, where the exchange can and the model is worth it."""
    if not training.synchronised:  # else workers meet inside the model, and the wire and this thread are busy with that
        if isinstance(exchange, Collective):
            return BucketedWorker(training, exchange, device)
        if isinstance(exchange, ArenaPerHost):
            small = exchange.alike and small_enough(training, [count for _, count in exchange.told_by])
            return (OneMessageWorker if small else OverlappedWorker)(training, exchange, device)
    return ExactWorker(training, exchange, device)


class DDP(Exact):
    """The arena where ranks share a host and memory, messages between hosts; elsewhere own weights and collectives."""

    def __init__(self, mesh: Mesh, training: Training) -> None:
        super().__init__(mesh, training, choose_exchange(mesh, training))


def choose_exchange(mesh: Mesh, training: Training) -> Exchange:
    """Return how the replicas of this rank's stage exchange sums; all of them call this together."""
    group, world = mesh.across_replicas, mesh.world
    if group.process_group is None:
        return InProcess(training.units)
    if world.backend == "shm" and world.nodes == 1:
        return SharedArena(Arena(group.process_group, arena_bytes(training, group.size)), training.units)
    if world.nodes > 1 and world.device == "cpu":
        return _over_hosts(group, world.node, training)
    return Collective(training.units, group)


def _over_hosts(group: Group, node: int, training: Training) -> Exchange:
    """Choose an arena per host, also of one rank; if one host refuses it, collectives on all, and why."""
    hosts = ranks_by_host(group, node)
    mine = next(ranks for ranks in hosts if group.rank in ranks)
    arena, refused = None, ""
    try:
        arena = host_arena(group, mine, arena_bytes(training, group.size, mine))
    except BadInput as error:
        refused = f"no arena: {error}"
    reasons = [text for text in all_gather_text(refused, group) if text]
    if arena is None or reasons:
        return Collective(training.units, group, reasons[0])
    return ArenaPerHost(arena, training.units, group, hosts, alike=hosts_alike(group))
