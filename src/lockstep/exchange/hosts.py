"""The exact reduction over several hosts: an arena within each, messages between them.

    host A: rank 0, rank 1      host B: rank 2, rank 3      four slices, one for each rank of the world
    | 0 | 1 | 2 | 3 |           | 0 | 1 | 2 | 3 |           a partial of each host, in its arena
      |   |   ^   ^               |   |   |   |
      |   |   |   +--- rank 1     |   |   |   +-- rank 3    who carries a slice on a host: its owner there, or, if
      |   |   +------- rank 0     |   |   +------ rank 2    that is on another host, one of its ranks in turn
    rank 0, rank 1              rank 2, rank 3

1  each rank adds up, over its own host's partials, the slices that it carries; as far as the tree allows
2  it sends what is left of a slice to the slice's owner                                              (messages)
3  the owner adds up what came from all hosts, in tree order, and updates its slice
4  it sends the new weights to the carriers of its slice on the other hosts, who put them in place    (messages)

So a host holds one copy of the weights, the world one copy of the optimizer's state, and a host sends and receives
what a ring all-reduce between hosts would. Hosts may have different numbers of ranks, dealt out in any order.
What is small goes whole instead, and is updated on every host: see whole_sums.py.
"""

from __future__ import annotations

import json
import platform
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout

from lockstep.comm import bootstrap
from lockstep.comm.arena import Arena
from lockstep.comm.broadcast import all_gather_text
from lockstep.comm.group import Group
from lockstep.comm.identity import Identity
from lockstep.comm.shm import ShmGroup
from lockstep.exchange.base import Exchange
from lockstep.exchange.host_traffic import HostTraffic
from lockstep.exchange.traffic import Parcel, Traffic
from lockstep.exchange.whole_sums import WholeSums
from lockstep.lanes.tree import additions, merge_plan
from lockstep.torch_compat.distributed import PrefixStore, default_store


def ranks_by_host(group: Group, node: int) -> list[list[int]]:
    """Return the ranks of a group that can share memory, host by host in order of their first; a collective call.

    `node` is this rank's host as the launcher numbers it. Ranks of one host that cannot share memory (containers,
    users) count as hosts of their own.
    """
    mine = Identity.mine(group.rank)
    texts = all_gather_text(json.dumps([node, mine.boot, mine.namespace, mine.user]), group)
    hosts: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        hosts.setdefault(text, []).append(rank)
    return list(hosts.values())


def hosts_alike(group: Group) -> bool:
    """Say whether all ranks compute with the same vectors and as many threads, so with the same bits; a collective."""
    own = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
    return len(set(all_gather_text(own, group))) == 1


def carriers(ranks: Sequence[int], workers: int) -> dict[int, int]:
    """Return who carries each slice (by its owner) on the host of these ranks: the owner, or the ranks in turn."""
    foreign = [owner for owner in range(workers) if owner not in ranks]
    return {**{rank: rank for rank in ranks}, **{owner: ranks[i % len(ranks)] for i, owner in enumerate(foreign)}}


def host_arena(group: Group, ranks: Sequence[int], nbytes: int) -> Arena:
    """Return an arena for these ranks of a group, all on one host; only they call this.

    Its process group is not made by `dist.new_group`: there, an error on one host would leave the others waiting.
    """
    world_ranks = [group.ranks[rank] for rank in ranks]
    named = ", ".join(map(str, world_ranks))
    member = bootstrap.Member(
        store=PrefixStore(f"lockstep/host/{named}", default_store()),
        rank=list(ranks).index(group.rank),
        size=len(ranks),
        timeout=default_pg_timeout,
        what=f"shared memory for the ranks {named} of one host",
    )
    host_group = ShmGroup(member, world_ranks)
    arena = Arena(host_group, nbytes)
    weakref.finalize(arena, host_group.shutdown)
    return arena


class ArenaPerHost(Exchange):
    """Workers that are processes of several hosts, which share memory within each."""

    def __init__(
        self, arena: Arena, lanes: int, group: Group, hosts: Sequence[Sequence[int]], *, alike: bool = True
    ) -> None:
        """`alike`: the hosts' processors give the same bits for the same arithmetic."""
        super().__init__(lanes, group.size, group.rank)
        self.alike = alike
        together = any(len(ranks) > 1 for ranks in hosts)
        self.name = f"arena + {group.backend}" if together else f"messages over {group.backend}"
        assert group.process_group is not None
        self._group = group.process_group
        self.arena = arena
        self._ranks = next(ranks for ranks in hosts if self.rank in ranks)
        self.first_here = self._ranks[0]
        """The first rank of this host."""
        self._first = [ranks[0] for ranks in hosts]
        carrying = [carriers(ranks, self.workers) for ranks in hosts]
        self.sources = [carrier[self.rank] for carrier in carrying]
        """Who carries this rank's slice, host by host; itself on its own."""
        mine = carrying[list(hosts).index(self._ranks)]
        self.carried = [owner for owner, carrier in mine.items() if carrier == self.rank != owner]
        """Whose slices this rank carries, its own apart."""
        sums = [merge_plan(lanes, [node for rank in ranks for node in self._covers[rank]]) for ranks in hosts]
        self._left = [[position for _, position in one.left] for one in sums]
        """The partials that hold what a host's own additions leave, host by host."""
        self._local_plan = sums[list(hosts).index(self._ranks)].steps
        self.left_here = self._left[list(hosts).index(self._ranks)]
        """The same of this host."""
        self.told_by = [(ranks[0], len(left)) for ranks, left in zip(hosts, self._left, strict=True)]
        """The first rank of each host, and how many partials its host's own additions leave."""
        self._plan = additions(lanes, [node for one in sums for node, _ in one.left])
        self._made: dict[int, list[Tensor]] = {}
        self._inboxes: dict[int, list[list[Tensor]]] = {}

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return the host's one buffer."""
        return self.arena.shared(numel, dtype)

    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return own buffers in the arena."""
        every = [[self.arena.shared(numel, dtype) for _ in self._covers[rank]] for rank in self._ranks]
        mine = every[self._ranks.index(self.rank)]
        self._made[id(mine[0])] = [one for row in every for one in row]
        length = numel // self.workers
        self._inboxes[id(mine[0])] = [
            [torch.empty(length if source != self.rank else 0, dtype=dtype) for _ in left]
            for source, left in zip(self.sources, self._left, strict=True)
        ]
        return mine

    def barrier(self) -> None:
        """Wait for all ranks of the host; between hosts the messages themselves wait."""
        self.arena.barrier()

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Do steps 1 to 3, in place, see [Note: in place]; every worker asks for its own slice at the same time."""
        length, made = len(part), self._made[id(partials[0])]
        inboxes, pending = self._inboxes[id(partials[0])], []
        for source, inbox in zip(self.sources, inboxes, strict=True):
            if source != self.rank:
                pending += [self.receive(buffer, source) for buffer in inbox]
        left = self.left_here
        for owner in (*self.carried, self.rank):  # the own slice last: it is added up while the others travel
            slices = [one[owner * length : (owner + 1) * length] for one in made]
            self.add_up_host(slices)
            if owner != self.rank:
                pending += [self.send(slices[position], owner) for position in left]
        _wait(pending)
        received = [
            [slices[position] for position in left] if source == self.rank else inbox
            for source, inbox in zip(self.sources, inboxes, strict=True)
        ]
        return self._add_up([one for row in received for one in row], self._plan, weight)

    def traffic(
        self, partials: Sequence[Sequence[Tensor]], weights: Sequence[Tensor], pieces: Sequence[Parcel]
    ) -> Traffic:
        """Return the messages of a step that begin during backward."""
        keys = [id(one[0]) for one in partials]
        rows = zip(keys, weights, strict=True)
        return HostTraffic(self, [(self._made[key], self._inboxes[key], flat) for key, flat in rows], pieces)

    def whole_sums(self, partials: Sequence[Sequence[Tensor]], lengths: Sequence[int], numbers: int) -> WholeSums:
        """Return the messages of a step that carry small sums whole, so many elements of each, with so many numbers."""
        rows = zip(partials, lengths, strict=True)
        return WholeSums(self, [[full[:used] for full in self._made[id(one[0])]] for one, used in rows], numbers)

    def add_up_host(self, slices: Sequence[Tensor]) -> None:
        """Do step 1 for one slice of all the host's partials, in place."""
        if self._local_plan:
            self._add_up(slices, self._local_plan)

    def whole_gradient(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Let the first rank of each host update: it gets all slices in its first partial."""
        flat = self._made[id(partials[0])][0]
        flat[self._slice(flat, self.rank)].copy_(reduced)  # nothing to copy where it was added up in place
        self._spread(flat)
        self.barrier()
        return flat if self.rank == self.first_here else None

    def sum_disjoint(self, numbers: Tensor) -> Tensor:
        """Add up within each host, between their first ranks, and tell each host: exact in any order."""
        numbers = self.sum_on_host(numbers)
        if self.rank == self.first_here:
            others = [rank for rank in self._first if rank != self.rank]
            inbox = [torch.empty_like(numbers) for _ in others]
            pending = [self.receive(buffer, rank) for buffer, rank in zip(inbox, others, strict=True)]
            _wait([*pending, *(self.send(numbers, rank) for rank in others)])
            for buffer in inbox:
                numbers += buffer
        if len(self._ranks) > 1:
            options = _now(dist.BroadcastOptions())
            options.rootRank, options.rootTensor = 0, 0
            self.arena.group.broadcast([numbers], options)
        return numbers

    def sum_on_host(self, numbers: Tensor) -> Tensor:
        """Add up within this host; all its ranks have come this far."""
        if len(self._ranks) > 1:
            self.arena.group.allreduce([numbers], _now(dist.AllreduceOptions()))
        return numbers

    def broadcast_weights(self, flat: Tensor) -> None:
        """Rank 0 wins: it sends its weights to the first rank of every other host."""
        if self.rank == 0:
            _wait(self.send(flat, rank) for rank in self._first if rank != 0)
        elif self.rank in self._first:
            _wait([self.receive(flat, 0)])
        self.barrier()

    def gather_weights(self, flat: Tensor) -> None:
        """Do step 4; the meeting that follows lets the host see it."""
        self._spread(flat)

    def _spread(self, flat: Tensor) -> None:
        """Send the own slice of a host's buffer to the other hosts, and put theirs in place."""
        pending = [self.receive(flat[self._slice(flat, owner)], owner) for owner in self.carried]
        mine = flat[self._slice(flat, self.rank)]
        _wait([*pending, *(self.send(mine, carrier) for carrier in self.sources if carrier != self.rank)])

    def send(self, tensor: Tensor, to: int, tag: int = 0) -> dist.Work:
        """Begin to send; messages with one tag arrive in order."""
        return self._group.send([tensor], to, tag)  # `dist.isend` looks up the group and its ranks each time

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> dist.Work:
        """Begin to receive."""
        return self._group.recv([tensor], source, tag)

    def _slice(self, flat: Tensor, owner: int) -> slice:
        length = flat.numel() // self.workers
        return slice(owner * length, (owner + 1) * length)


def _wait(pending: Iterable[dist.Work]) -> None:
    for work in list(pending):  # all are begun before one is waited for
        work.wait()


def _now(options: Any) -> Any:
    options.asyncOp = False
    return options
