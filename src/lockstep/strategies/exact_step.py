"""The exact step: lanes folded in tree order, one sum, one division, one update, whoever computes which lane.

    1  for each owned lane: forward, backward; gradients and float buffers fold into this worker's partials
    2  everyone learns every lane's loss and weight                                        (also a barrier)
    3  worker r adds up slice r of all partials in tree order, divides by the global weight, clips
    4  worker r updates slice r of the weights
    5  the slices become everybody's weights                                               (a barrier, or all-gather)

`single`, `dp` and `ddp` are this one step over four kinds of exchange.

[Note: in parts]
Where a worker has its sums for itself, and nothing needs the whole gradient at once, steps 3 and 4 are done for a few
tensors at a time: the optimizer finds what was just divided in the cache, where memory freed by the part before is
used again. A large sum is divided as soon as it is made, if it is known by then what by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lockstep.exchange.base import Exchange
from lockstep.lanes.flat_layout import slots_within
from lockstep.lanes.tree import Fold
from lockstep.nn.convert import without_samples
from lockstep.strategies import sliced_optimizer as sliced
from lockstep.strategies.base import How, LaneLoss, StepStats, Training, backward, check_weight, not_finite
from lockstep.strategies.flat_model import FlatModel, ModelLayout, Total
from lockstep.strategies.gradient_norm import BlockNorms
from lockstep.strategies.lane_slots import LaneSlot, lane_slots
from lockstep.strategies.merging import lazy_zeros
from lockstep.strategies.sliced_optimizer import GradientRun
from lockstep.torch_compat.optimizers import count_as_stepped, has_step_hooks

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import LaneBatch
    from lockstep.strategies.clock import Clock

PART = 1 << 19
"""Elements that are divided here and updated together, at least; what was divided already is updated with them."""


Forward = Callable[[nn.Module, "LaneBatch", int], LaneLoss]


class ExactWorker:
    """One worker's side of the exact step."""

    answers = True
    """Whether what this worker updates is its own in a saved state; not if another one has the same."""
    _keep = False
    """Whether sums of large gradients stay where backward made them: nobody else reads them, see kept_sums.py."""

    def __init__(self, training: Training, exchange: Exchange, device: str, *, part: bool = False) -> None:
        """`part`: the model is a part of one that is cut, and may have nothing to train."""
        self.exchange, self.training, self.device = exchange, training, device
        trained = [p for p in training.model.parameters() if p.requires_grad]
        self.optimizer: Optimizer = sliced.make_optimizer(training.optimizer, trained)
        why = sliced.why_replicated(self.optimizer)
        self.replicated = bool(why)
        """An optimizer that looks at whole tensors runs on whole tensors, once for each copy of the weights."""
        self.how = How(exchange=exchange.name, optimizer=f"replicated: {why}" if why else "on slices")
        self.layout = self._lay_out(sliced.group_keys(self.optimizer, trained), part=part)
        self.parts = self._own_parts()
        """Of each section, the elements that this worker updates."""
        self._partials: list[list[Tensor]] = []
        """Of each section, the sums over lanes that this worker holds whole."""
        self.slices = self._hold_weights()
        """Of each section, the weights that this worker updates."""
        buffers = self.layout.buffers
        self._buffer_means = [exchange.weights(s.numel, s.key, device) for s in buffers.sections]  # type: ignore[arg-type]
        self._buffer_parts = [s.part(exchange.workers, exchange.rank) for s in buffers.sections]
        self._buffer_partials = [exchange.partials(s.numel, s.key, device) for s in buffers.sections]  # type: ignore[arg-type]
        self._slots = lane_slots(training, exchange, self._partials, self._buffer_partials)
        self.members = [[self._index(p) for p in group["params"]] for group in self.optimizer.param_groups]
        self._norms = BlockNorms(self.layout, device)
        self.chunks: list[sliced.Chunk] = []
        if not self.replicated:
            groups = [s.key[0] for s in self.layout.sections]  # type: ignore[index]
            self.chunks = sliced.slice_optimizer(self.optimizer, groups, self.slices, self._stretches())
        self.schedule = training.schedule(self.optimizer) if training.schedule else None
        # One worker has nobody to exchange with: adding up its lanes and dividing belongs to its gradients.
        self._waiting, self._exchanging = ("wait", "exchange") if exchange.workers > 1 else ("backward", "backward")
        self._sent = self._bytes_sent() if exchange.workers > 1 else 0

    def _own_parts(self) -> list[range]:
        return [section.part(self.exchange.workers, self.exchange.rank) for section in self.layout.sections]

    def _lay_out(self, groups: list[int], *, part: bool) -> ModelLayout:
        """Return where each weight lies."""
        self._keep = self.exchange.workers == 1 and self.device == "cpu"  # an accelerator has no pages left untouched
        keys = [(group,) for group in groups]
        self.flat = FlatModel(self.training.model, keys, self.exchange.workers, part=part, keep=self._keep)
        return self.flat

    def _stretches(self) -> list[list[range]]:
        """Return the parts of this worker's slices whose gradients lie in one piece."""
        if self._keep:
            return self.flat.stretches
        return [[part] for part in self.parts]

    def _hold_weights(self) -> list[Tensor]:
        """Make the model's weights views of flat ones, rank 0's everybody's, and room for the sums over lanes."""
        flat, exchange = self.flat, self.exchange
        self._weights = [exchange.weights(s.numel, s.key[1], self.device) for s in flat.sections]  # type: ignore[index]
        flat.attach(self._weights, fill=exchange.rank == 0 or not exchange.shares_memory)
        for weights in self._weights:
            exchange.broadcast_weights(weights)
        self._partials = (
            [[lazy_zeros(weights)] for weights in self._weights]
            if self._keep
            else [exchange.partials(s.numel, s.key[1], self.device) for s in flat.sections]  # type: ignore[index]
        )
        return [weights[part.start : part.stop] for weights, part in zip(self._weights, self.parts, strict=True)]

    def _bytes_sent(self) -> int:
        """Return how many bytes of gradients go into the exchange in a step."""
        return sum(one.nbytes for partials in self._partials for one in partials)

    def put_parameter(self, name: str, value: Tensor) -> None:
        """Set one weight, where it lies."""
        with torch.no_grad():
            self.training.model.get_parameter(name).copy_(value)

    def step(
        self,
        number: int,
        lanes: Mapping[int, LaneBatch],
        forward: Forward,
        filler: LaneBatch | None = None,
        *,
        clock: Clock,
    ) -> StepStats:
        """Do one step on this worker's lanes; a lane that is not there has no samples in this step.

        Where workers meet inside the model, `filler` is run in place of such a lane, for nothing but the meeting.
        """
        table = torch.zeros(self.training.lanes, 2, dtype=torch.float64, device=self.device)
        run = partial(self._run_lane, number, lanes, forward, filler)
        others = self._fold_lanes(run, table, clock)
        table, others = self._tell(table, others)
        clock.lap(self._waiting)
        table = table.cpu()  # the one place of a step where the host waits for an accelerator
        clock.read()
        if self.device != "cpu":
            _check_losses(table, number)
        total, weight = (sum(column) for column in table.T.tolist())
        if self._in_parts:
            self._update_in_parts(weight)
        else:
            reduced = self._reduce(weight)
            if self.training.clip is not None:
                self._clip(reduced, self.training.clip)
            clock.lap(self._exchanging)
            self._update(reduced, clock)
        if self.schedule is not None:
            count_as_stepped(self.optimizer)
            self.schedule.step()
        clock.lap("optimizer")
        self._share(int((table[:, 1] > 0).sum()))
        clock.lap(self._exchanging)
        self._meet()
        clock.lap(self._waiting)
        self.layout.buffers.finish(self._buffer_means, others)
        clock.lap("optimizer")
        own_total, own_weight = (sum(column) for column in table[sorted(lanes)].T.tolist())
        own = own_total / own_weight if own_weight else 0.0
        return StepStats.of(number, own, own_weight, clock=clock, sent=self._sent, global_loss=total / weight)

    def _meet(self) -> None:
        """Wait until everybody's weights are new."""
        self.exchange.barrier()

    def _run_lane(
        self, number: int, lanes: Mapping[int, LaneBatch], forward: Forward, filler: LaneBatch | None, lane: int
    ) -> LaneLoss | None:
        """Run one lane forward; None if it has no samples."""
        if lane in lanes:
            return forward(self.training.model, lanes[lane], number)
        if filler is not None and self.training.synchronised:
            with without_samples(self.training.model):
                self._backward_of(forward(self.training.model, filler, number).total * 0.0)
        return None

    def _backward_of(self, total: Tensor) -> None:
        backward(total)

    def _fold_lanes(self, run: Callable[[int], LaneLoss | None], table: Tensor, clock: Clock) -> Tensor:
        """Step 1; returns the buffers that are not floats, as the first lane left them."""
        others = self.layout.buffers.pack_others()
        for slot in self._slots:
            self.layout.buffers.restore()
            self.flat.begin(slot.fold, slot.gradients)
            loss = run(slot.lane)
            clock.lap("forward")
            self._before_backward(slot, table, loss)
            if loss is not None:
                self._backward_of(loss.total)
                loss.note(table[slot.lane])
                if slot.lane == 0:
                    others = self.layout.buffers.pack_others()
            self._end_lane(slot, computed=loss is not None)
            clock.lap("backward")
        return others

    def _before_backward(self, slot: LaneSlot, table: Tensor, loss: LaneLoss | None) -> None:
        """Do what can begin once this lane's loss is known; `table` has those of the lanes before."""
        if self._keep:
            self._divide_after(slot, sum(table[:, 1].tolist()) + (loss.weight if loss is not None else 0.0))

    def _end_lane(self, slot: LaneSlot, *, computed: bool) -> None:
        """Fold what a lane left; one that was not computed counts as zero."""
        self._end_backward()
        self._end_buffers(slot, computed=computed)

    def _end_buffers(self, slot: LaneSlot, *, computed: bool) -> None:
        """Fold the float buffers that a lane left."""
        self.layout.buffers.collect()
        self._fold_buffers(slot.fold, slot.means, self.layout.buffers.now if computed else None)
        for left, right in slot.fold.merges:  # the model does those of its gradients
            for buffers in slot.means:
                buffers[left].add_(buffers[right])

    def _end_backward(self) -> None:
        self.flat.end()

    def _fold_buffers(self, fold: Fold, means: list[list[Tensor]], values: list[Tensor] | None) -> None:
        for index, buffers in enumerate(means):
            target = buffers[fold.buffer]
            if fold.fresh:
                target.zero_() if values is None else target.copy_(values[index])
            else:
                target.add_(0.0 if values is None else values[index])

    def _tell(self, table: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Step 2: each lane's numbers come from its owner, the integer buffers from the owner of lane 0."""
        both = self.exchange.sum_disjoint(torch.cat([table.flatten(), self._own_others(others).to(self.device)]))
        return both[: table.numel()].view_as(table), both[table.numel() :]

    def _reduce(self, weight: float) -> list[GradientRun]:
        """Step 3: this worker's slices of the gradient."""
        runs: list[GradientRun] = []
        for section, (partials, part) in enumerate(zip(self._partials, self.parts, strict=True)):
            if not self._keep:
                runs.append(GradientRun(section, part.start, self.exchange.mean(partials, part, weight)))
                continue
            totals = self.flat.sums(section, partials[0])
            runs += [GradientRun(section, total.start, self._mean(total, weight)) for total in totals]
        return runs

    def _mean(self, total: Total, weight: float) -> Tensor:
        return total.values if total.finished else self.exchange.divided([total.values], weight)

    def _divide_after(self, slot: LaneSlot, weight: float) -> None:
        """Let sums of large gradients that are kept be divided as the last lane makes them; this is all lanes' weight.

        Called before each lane's gradients: for another lane than the last, nothing is divided.
        """
        last = slot is self._slots[-1] and weight > 0.0

        def divide(sums: list[Tensor]) -> Tensor:
            return self.exchange.divided([one.view(-1) for one in sums], weight).view_as(sums[0])

        self.flat.finish_sums(divide if last else None)

    def _clip(self, reduced: list[GradientRun], limit: float) -> None:
        """Scale the gradient so that its norm is at most `limit`; the norm is summed by blocks, see [Note: blocks]."""
        squares = self._all_squares(self._norms.squares(reduced))
        # fsum is exact, so it does not matter who summed which block
        norm = math.sqrt(math.fsum(self._every_block(squares.tolist())))
        if norm > limit:
            for run in reduced:
                run.values.mul_(limit / (norm + 1e-6))

    def _all_squares(self, own: Tensor) -> Tensor:
        """Return every worker's squares."""
        return self.exchange.sum_disjoint(own)

    def _every_block(self, squares: list[float]) -> list[float]:
        """Return the blocks of the whole model: here, those of this worker's."""
        return squares

    def _update(self, reduced: list[GradientRun], clock: Clock) -> None:
        """Step 4."""
        if self.replicated:
            self._update_whole(reduced, clock)
        else:
            sliced.set_gradients(self.chunks, reduced)
            self.optimizer.step()
            for chunk in self.chunks:
                chunk.weight.grad = None  # else what was received lives until the next step has received its own

    @property
    def _in_parts(self) -> bool:
        """Say whether sums can be divided just before they are used."""
        return self._keep and not self._needs_whole_gradient

    @property
    def _needs_whole_gradient(self) -> bool:
        """Say whether nothing can be updated before all is added up; hooks may come and go between steps."""
        return self.replicated or self.training.clip is not None or has_step_hooks(self.optimizer)

    def _update_in_parts(self, weight: float) -> None:
        """Do steps 3 and 4 part by part, see [Note: in parts]."""
        chunks = deque(self.chunks)
        for number, section in enumerate(self.layout.sections):
            totals = deque(self.flat.sums(number, self._partials[number][0]))
            while totals:
                runs: list[GradientRun] = []
                divided = 0
                while totals and divided < PART:
                    total = totals.popleft()
                    divided += 0 if total.finished else total.values.numel()
                    runs.append(GradientRun(number, total.start, self._mean(total, weight)))
                here = []
                while chunks and (chunks[0].section, chunks[0].start) < (number, runs[-1].stop):
                    here.append(chunks.popleft())
                sliced.set_gradients(here, runs)
                sliced.step_chunks(self.optimizer, section.key[0], here)  # type: ignore[index]
                for chunk in here:
                    chunk.weight.grad = None

    def _share(self, lanes: int) -> None:
        """Step 5; the float buffers become the mean over the lanes that had samples."""
        for partials, part, mean in zip(self._buffer_partials, self._buffer_parts, self._buffer_means, strict=True):
            mean[part.start : part.stop] = self.exchange.mean(partials, part, lanes)
        self._share_weights()
        for mean in self._buffer_means:
            self.exchange.gather_weights(mean)

    def _own_others(self, others: Tensor) -> Tensor:
        """Return the buffers that are not floats as they go into a sum over workers: rank 0's count."""
        return others if self.exchange.rank == 0 else torch.zeros_like(others)

    def _share_weights(self) -> None:
        if not self.replicated:
            for weights in self._weights:
                self.exchange.gather_weights(weights)

    def _update_whole(self, reduced: list[GradientRun], clock: Clock) -> None:
        """Update whole tensors: an optimizer with a norm per tensor cannot work on slices."""
        if not self._keep:
            reduced = self._gather_gradient(reduced)
            clock.lap(self._exchanging)
        if not reduced:
            return
        for run in reduced:
            for slot in slots_within(self.layout.sections[run.section].slots, run.start, run.stop):
                own = run.values[slot.start - run.start : slot.stop - run.start]
                self.layout.parameters[slot.index].grad = own.view(slot.shape)
        self.optimizer.step()
        for parameter in self.layout.parameters:
            parameter.grad = None

    def _gather_gradient(self, reduced: list[GradientRun]) -> list[GradientRun]:
        """Return the whole gradient to a worker that updates whole tensors; nothing: another one does."""
        both = zip(self._partials, reduced, strict=True)
        flats = [self.exchange.whole_gradient(partials, run.values) for partials, run in both]
        return [GradientRun(section, 0, flat) for section, flat in enumerate(flats) if flat is not None]

    def _index(self, parameter: nn.Parameter) -> int:
        return next(i for i, own in enumerate(self.layout.parameters) if own is parameter)


def _check_losses(table: Tensor, step: int) -> None:
    """Stop the run if a lane's loss is no number, or its weight none that a lane can have: all workers know all."""
    for lane, (total, weight) in enumerate(table.tolist()):
        check_weight(weight)
        if not math.isfinite(total):
            raise not_finite(total, step, lane)
