"""Sending: a lane's gradients go to the owners of their elements, block by block, while backward goes on.

Each worker gets, of every worker's lane, the elements that it owns, and adds them up in tree order. Lanes are dealt out
in turn, so that those of one turn are neighbours in the tree: with a power of two of workers a turn leaves one sum,
and a worker never holds more than about log2(turns) sums of its own elements.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.group import Group
from lockstep.shards.messages import begin, both_ways
from lockstep.shards.tree_sum import TreeSum


class _Sent(NamedTuple):
    lanes: Sequence[int | None]
    gradients: Mapping[int, Tensor]
    inboxes: Mapping[int, Tensor]
    work: Sequence[dist.Work]


class GradientSender:
    """Gradients on their way, by section; and the sums of what came.

    A thread waits for what comes and adds it up: who waited for it in backward could wait for a worker that waits for a
    block of weights from here.
    """

    def __init__(self, group: Group, lanes: int, parts: Mapping[int, Sequence[range]]) -> None:
        """`parts`: which elements of each section belong to whom."""
        self._group, self._parts = group, parts
        self.sums = {number: TreeSum(lanes) for number in parts}
        self._rooms: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._sent: SimpleQueue[_Sent | None] = SimpleQueue()
        self._added: SimpleQueue[BaseException | None] = SimpleQueue()
        self._open = 0
        thread = threading.Thread(target=_add_up, args=(self._sent, self._added, weakref.proxy(self)), daemon=True)
        thread.start()
        weakref.finalize(self, self._sent.put, None)

    def room(self, numel: int, like: Tensor) -> Tensor:
        """Return memory for gradients, of any content."""
        kept = self._rooms.setdefault((numel, like.dtype), [])
        return kept.pop() if kept else torch.empty(numel, dtype=like.dtype, device=like.device)

    def send(self, lanes: Sequence[int | None], gradients: Mapping[int, Tensor]) -> None:
        """Send whole sections of one lane's gradients, and get those of the workers' `lanes`; None has none."""
        operations: list[dist.P2POp] = []
        inboxes = {}
        for number, flat in gradients.items():
            parts = self._parts[number]
            inboxes[number] = inbox = self.room(len(parts[0]) * self._group.size, flat)
            for peer, part in enumerate(parts):
                if peer != self._group.rank:
                    row = inbox.view(len(parts), -1)[peer]
                    operations += both_ways(self._group, peer, flat[part.start : part.stop], row)
        self._sent.put(_Sent(lanes, gradients, inboxes, begin(operations)))
        self._open += 1

    def finish(self) -> None:
        """Wait until everything that was sent and is to come has been added up."""
        while self._open:
            error = self._added.get()
            self._open -= 1
            if error is not None:
                raise error

    def add(self, sent: _Sent) -> None:
        """Wait for what comes, and add it up."""
        for work in sent.work:
            work.wait()
        rank = self._group.rank
        for number, flat in sent.gradients.items():
            parts, inbox = self._parts[number], sent.inboxes[number]
            rows = list(inbox.view(len(parts), -1))
            rows[rank] = flat[parts[rank].start : parts[rank].stop]
            self.sums[number].add({lane: row for lane, row in zip(sent.lanes, rows, strict=True) if lane is not None})
            self._rooms[inbox.numel(), inbox.dtype].append(inbox)
            self._rooms.setdefault((flat.numel(), flat.dtype), []).append(flat)


def _add_up(sent: SimpleQueue[_Sent | None], added: SimpleQueue[BaseException | None], sender: GradientSender) -> None:
    """Work for a sender, of which only a weak reference is kept, until it is gone."""
    while (one := sent.get()) is not None:
        try:
            sender.add(one)
            added.put(None)
        except BaseException as error:  # raised where the step waits for it
            added.put(error)
        del one
