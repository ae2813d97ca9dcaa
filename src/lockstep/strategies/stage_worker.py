"""The exact step on one stage of a model that is cut: lanes stream through, and fold in the same tree.

forward of a lane    its buffers start from the step's first values; what came from the stage before goes through
this stage's layers, and on to the next stage
backward of a lane   its buffers return to what its forward left; gradients come from the next stage, fold here, and
go on to the stage before, and with them the loss, which the last stage knows; in two halves
(stages/halves.py) they go on first, and those of the weights fold later
then                 as in exact_step.py, over the replicas of this stage; norms are summed over all stages

So a stage needs nobody else to update its weights (but for a norm), and the later ones, which end first, do so while
the earlier ones are still in backward, or already send the next step's first lanes. Nobody waits for all others at
the end of a step, but where there are several hosts: the report sets their clocks by that meeting.

[Note: together]
Lanes whose weights have their gradients still to come get them weight by weight: those of one weight in all lanes, in
the order of lanes, then those of the next. So what is added up is in the cache, and not a whole set of gradients away.

[Note: early gradients]
Where weights are large, most of a backward is for them: their gradients, and adding those to other lanes', which takes
the longer the more sums of the tree a lane completes. So in every order of lanes a backward is in halves there, and
what the stage before waits for leaves first; the second half follows at once. It costs a walk over the graph and a call
for each weight, about 0.1 ms: small weights have their gradients in less.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Container, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.stages.actions import in_halves
from lockstep.stages.halves import Halves, halves_of, weights_together
from lockstep.stages.stage_model import Handed, Received
from lockstep.strategies.base import LaneLoss, Training
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.lane_slots import LaneSlot
from lockstep.torch_compat.graph import backward_from

if TYPE_CHECKING:
    from lockstep.exchange.base import Exchange
    from lockstep.mesh import Mesh
    from lockstep.stages.actions import Action
    from lockstep.stages.transfer import LossNumbers, Transfer
    from lockstep.strategies.clock import Clock
    from lockstep.strategies.flat_buffers import BufferValues


EARLY = 1 << 17
"""Elements of a stage's weights, on average, from which gradients leave early, see [Note: early gradients]."""


class Borrowed(NamedTuple):
    """A weight that several stages use, as this stage sees it; see [Note: shared weights] in stages/ownership.py."""

    number: int
    """Which of the shared weights it is: the same on all stages."""
    parameter: nn.Parameter
    before: int | None
    """The stage before that uses it: gets this stage's gradients. None: this stage owns it."""
    after: int | None
    """The stage after that uses it: its gradients enter the sum here first."""
    owner: int
    users: tuple[int, ...]


class StageLoss(NamedTuple):
    """What one lane's forward left on this stage."""

    received: Received | None
    handed: Handed | None
    loss: LaneLoss | None
    """Of the last stage."""
    in_one: bool = False
    """Whether backward cannot be in halves, whatever the graph looks like."""


class InFlight(NamedTuple):
    """A lane between its forward and its backward; its buffers as forward left them."""

    run: StageLoss
    buffers: BufferValues


class HalfDone(NamedTuple):
    """A lane whose gradients have gone on, and whose weights have theirs still to come."""

    slot: LaneSlot
    halves: Halves
    buffers: BufferValues


class StageWorker(ExactWorker):
    """One stage of one replica."""

    def __init__(
        self,
        training: Training,
        exchange: Exchange,
        mesh: Mesh,
        *,
        transfer: Transfer,
        actions: Callable[[int], Sequence[Action]],
        shared: Sequence[Borrowed],
    ) -> None:
        self._mesh, self._transfer, self._shared = mesh, transfer, shared
        super().__init__(training, exchange, mesh.world.device, part=True)
        self._waiting = "wait"  # also without replicas: for messages that have not left, and on several hosts for all
        self._actions = actions(len(self._slots))
        self.in_halves = {self._slots[position].lane for position in in_halves(self._actions)}
        """The lanes whose backward the order of lanes has in halves."""
        self._early = _weight_size(self.layout.parameters) >= EARLY
        """Whether the other lanes' is so too, for what it computes first: see [Note: early gradients]."""
        self._blocks: list[int] | None = None
        """How many blocks of norms each stage has."""

    def may_be_in_halves(self, lane: int) -> bool:
        """Say whether a lane's backward is to be in halves, if its graph allows it."""
        return self._mesh.stage > 0 and not self._shared and (self._early or lane in self.in_halves)

    def _fold_lanes(self, run: Callable[[int], StageLoss | None], table: Tensor, clock: Clock) -> Tensor:  # type: ignore[override]
        """Do this stage's actions in their order."""
        self._others = self.layout.buffers.pack_others()
        in_flight: dict[int, InFlight | None] = {}
        self._half_done: deque[HalfDone] = deque()
        self._weight = 0.0
        for second_halves, actions in itertools.groupby(self._actions, attrgetter("weights")):
            if second_halves:
                self._finish_some({self._slots[action.lane].lane for action in actions}, clock)
                continue
            for action in actions:
                slot = self._slots[action.lane]
                if action.forward:
                    in_flight[slot.lane] = self._forward(slot, run, clock)
                else:
                    lane = in_flight.pop(slot.lane)
                    table[slot.lane, 0], table[slot.lane, 1] = self._backward(slot, lane, clock)
        return self._others

    def _forward(self, slot: LaneSlot, run: Callable[[int], StageLoss | None], clock: Clock) -> InFlight | None:
        self.layout.buffers.restore()
        lane = run(slot.lane)
        if lane is None:
            return None
        kept = InFlight(lane, self.layout.buffers.copy())
        clock.lap("forward", slot.lane)
        if lane.handed is not None:
            self._transfer.send_value(lane.handed.packed, lane.handed.tensors, lane.handed.random)
            clock.lap("exchange", slot.lane)
        return kept

    def _backward(self, slot: LaneSlot, lane: InFlight | None, clock: Clock) -> LossNumbers:
        """Run a lane backward; return its loss and weight, 0 if it has no samples."""
        numbers, halves = (0.0, 0.0), None
        if lane is not None:
            roots, gradients, numbers = self._roots(lane.run)
            self._weight += numbers[1]
            clock.lap("wait", slot.lane)
            halves = self._halves(slot, lane.run, roots)
        if lane is not None and halves is not None:
            halves.first(roots, gradients)
            self._half_done.append(HalfDone(slot, halves, lane.buffers))
        else:
            while self._half_done:  # lanes fold in their order
                self._finish_first(clock)
            self._begin_weights(slot)
            if lane is not None:
                self.layout.buffers.put(lane.buffers)
                if roots:
                    backward_from(roots, gradients)
        clock.lap("backward", slot.lane)
        if lane is not None:
            self._send_back(lane.run, numbers)
            clock.lap("exchange", slot.lane)
        if halves is None:
            self._finish(slot, clock, computed=lane is not None)
        elif slot.lane not in self.in_halves:
            self._finish_first(clock)
        return numbers

    def _halves(self, slot: LaneSlot, lane: StageLoss, roots: Sequence[Tensor]) -> Halves | None:
        """Return a lane's backward in halves, if it is to be so and the lane allows it."""
        if lane.received is None or lane.in_one or not self.may_be_in_halves(slot.lane):
            return None
        halves = halves_of(roots, lane.received)
        if halves is None:
            self._early = False  # the next lanes' graphs are as this one, and need not be walked in vain
        return halves

    def _begin_weights(self, slot: LaneSlot) -> None:
        """Let the gradients of weights go where a lane folds."""
        self._divide_after(slot, self._weight)
        self.flat.begin(slot.fold, slot.gradients)

    def _finish_first(self, clock: Clock) -> None:
        """Compute the weights' gradients of the lane that has waited longest."""
        slot, halves, buffers = self._half_done.popleft()
        self.layout.buffers.put(buffers)
        self._begin_weights(slot)
        halves.second()
        self._finish(slot, clock, computed=True)

    def _finish_some(self, due: Container[int], clock: Clock) -> None:
        """Compute the weights' gradients of these lanes, see [Note: together]; some of them may be done already."""
        lanes = [lane for lane in self._half_done if lane.slot.lane in due]
        together = len(lanes) > 1 and self.flat.one_by_one
        if not (together and weights_together([lane.halves for lane in lanes], self.layout.parameters)):
            for _ in lanes:
                self._finish_first(clock)
            return
        for nodes in zip(*(lane.halves.nodes for lane in lanes), strict=True):
            for node, lane in zip(nodes, lanes, strict=True):
                self._divide_after(lane.slot, self._weight)
                self.flat.begin_some(node.weights, lane.slot.fold, lane.slot.gradients)
                node.add_weights()
                self.flat.end_some(node.weights, lane.slot.gradients)
        for _ in lanes:
            slot, _, buffers = self._half_done.popleft()
            self.layout.buffers.put(buffers)
            self._end_buffers(slot, computed=True)
            clock.lap("backward", slot.lane)

    def _finish(self, slot: LaneSlot, clock: Clock, *, computed: bool) -> None:
        self._end_lane(slot, computed=computed)
        clock.lap("backward", slot.lane)

    def _end_buffers(self, slot: LaneSlot, *, computed: bool) -> None:
        if computed and slot.lane == 0:
            self._others = self.layout.buffers.pack_others()
        super()._end_buffers(slot, computed=computed)

    def _roots(self, lane: StageLoss) -> tuple[list[Tensor], list[Tensor | None], LossNumbers]:
        """Return where this lane's backward starts, waiting for what the stages after give, and the lane's loss."""
        pairs: list[tuple[Tensor, Tensor | None]] = []
        if lane.handed is None:
            assert lane.loss is not None
            pairs.append((lane.loss.total, None))
            numbers = lane.loss.value, lane.loss.weight
        else:
            came, numbers = self._transfer.receive_gradients()
            pairs += [
                (one, gradient) for one, gradient in zip(lane.handed.trained, came, strict=True) if gradient is not None
            ]
        for weight in self._shared:
            if weight.after is not None:
                gradient = self._transfer.receive_shared(weight.after, weight.number)
                if gradient is not None:
                    pairs.append((weight.parameter, gradient))
        return [root for root, _ in pairs], [gradient for _, gradient in pairs], numbers

    def _send_back(self, lane: StageLoss, numbers: LossNumbers) -> None:
        if lane.received is not None:
            self._transfer.send_gradients(lane.received.gradients, numbers)
        for weight in self._shared:
            if weight.before is not None:
                self._transfer.send_shared(weight.parameter.grad, weight.before, weight.number)
                weight.parameter.grad = None

    def _meet(self) -> None:
        super()._meet()
        self._transfer.finish()
        if self._mesh.world.nodes > 1:
            group = self._mesh.everyone
            dist.all_reduce(torch.zeros(1, device=group.device), group=group.process_group)

    def _every_block(self, squares: list[float]) -> list[float]:
        """Return the blocks of all stages: each stage's, counted once."""
        group = self._mesh.across_stages
        if self._blocks is None:
            counts = torch.zeros(group.size, dtype=torch.int64, device=group.device)
            counts[group.rank] = len(squares)
            dist.all_reduce(counts, group=group.process_group)
            self._blocks = counts.tolist()
        first = sum(self._blocks[: group.rank])
        table = torch.zeros(sum(self._blocks), dtype=torch.float64, device=group.device)
        table[first : first + len(squares)] = torch.tensor(squares, dtype=torch.float64, device=group.device)
        dist.all_reduce(table, group=group.process_group)
        every: list[float] = table.tolist()
        return every

    def renew_shared(self) -> None:
        """Give every stage that borrows a weight its present value."""
        for weight in self._shared:
            if weight.before is None:
                for user in weight.users[1:]:
                    self._transfer.send_weight(weight.parameter, user)
            else:
                self._transfer.receive_weight(weight.parameter, weight.owner)
        self._transfer.finish()


def _weight_size(parameters: Sequence[Tensor]) -> float:
    """Return the average size of those with more than one dimension: biases come with a weight."""
    sizes = [one.numel() for one in parameters if one.dim() > 1]
    return sum(sizes) / len(sizes) if sizes else 0.0
