"""The exact step with weights, gradients and optimizer state divided over workers; see shards/.

lanes in turn        every worker computes one lane at a time, so that all need the same weights at the same time
gradients of a lane  go to the owners of their elements, who add them up in the same tree as ever
then                 as in exact_step.py; only the weights that every worker has are exchanged afterwards
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.comm.broadcast import broadcast_text
from lockstep.comm.group import Group
from lockstep.errors import BadInput
from lockstep.exchange.collective import Collective
from lockstep.lanes.flat_layout import Section
from lockstep.shards.block_weights import BlockWeights
from lockstep.shards.blocks import WeightBlock, choose_blocks, uses_of_weights
from lockstep.shards.sharded_model import ShardedModel
from lockstep.stages.layer_costs import untouched
from lockstep.strategies.base import LaneLoss, Training, backward
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.flat_model import ModelLayout
from lockstep.strategies.sliced_optimizer import GradientRun

if TYPE_CHECKING:
    from lockstep.strategies.clock import Clock


class ShardWorker(ExactWorker):
    """One worker of a model whose weights are divided."""

    def __init__(self, training: Training, group: Group, device: str, run: Callable[[nn.Module], Tensor]) -> None:
        """`run` computes the loss of one lane, the same on all workers, with any model."""
        self._group, self._run = group, run
        super().__init__(training, Collective(training.lanes, group, in_turn=True), device)
        with untouched(training.model):
            self._sharded.note_orders(lambda: run(training.model))
        self.layout.buffers.collect()
        self.layout.buffers.restore()
        self.how = replace(self.how, exchange=f"weights in blocks over {group.backend}", shards=self._describe())

    def fetch_all(self) -> None:
        """Have the whole model here until `drop_all` or the next step; all workers call this together."""
        self._sharded.fetch_all()

    def drop_all(self) -> None:
        """Drop the weights that are fetched for every use."""
        self._sharded.release_all()

    def renew(self) -> None:
        """Take over weights that were put; all workers call this together."""
        self.drop_all()
        self._sharded.renew()

    def put_parameter(self, name: str, value: Tensor) -> None:
        """Keep this worker's elements of a weight; a frozen one is whole."""
        if name not in self._places:
            super().put_parameter(name, value)
            return
        block, number, start = self._places[name]
        self._weights_of[block].put(number, start, value.flatten())

    def _lay_out(self, groups: list[int], *, part: bool) -> ModelLayout:
        """Divide the model into blocks; every section belongs to one of them, or to what every worker has."""
        model = self.training.model
        if self.replicated:
            raise BadInput(
                f"strategy sharded divides the optimizer's state by elements, and {type(self.optimizer).__name__} may "
                "look at whole tensors: use strategy ddp, or an optimizer of torch.optim that works element by element"
            )
        self._blocks = self._agree()
        block_of = {name: number for number, block in enumerate(self._blocks) for name in block.parameters}
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        keys = [(group, block_of.get(name, len(self._blocks))) for group, name in zip(groups, names, strict=True)]
        return ModelLayout(model, keys, self.exchange.workers)

    def _agree(self) -> list[WeightBlock]:
        """Return the blocks that rank 0 found; all ranks look, because a model may exchange something in forward."""
        model = self.training.model
        with untouched(model), torch.no_grad():
            uses = uses_of_weights(model, lambda: self._run(model))
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
        blocks = [(block.module, block.parameters) for block in choose_blocks(sizes, uses)]
        agreed = json.loads(broadcast_text(json.dumps(blocks), self._group))
        return [WeightBlock(module, tuple(names)) for module, names in agreed]

    def _hold_weights(self) -> list[Tensor]:
        layout, exchange = self.layout, self.exchange
        self._weights_of = [
            BlockWeights(
                {number: section for number, section in enumerate(layout.sections) if block_number(section) == block},
                layout.parameters,
                workers=exchange.workers,
                rank=exchange.rank,
                agree=exchange.broadcast_weights,
            )
            for block in range(len(self._blocks) + 1)
        ]
        self._places = {
            layout.names[slot.index]: (block_number(section), number, slot.start)
            for number, section in enumerate(layout.sections)
            for slot in section.slots
        }
        self._sharded = ShardedModel(
            self.training.model,
            self._blocks,
            self._weights_of,
            layout.parameters,
            layout.names,
            lanes=self.training.lanes,
            groups=(again(self._group), again(self._group)),
        )
        return [
            self._weights_of[block_number(section)].slices[number] for number, section in enumerate(layout.sections)
        ]

    def _bytes_sent(self) -> int:
        turns = -(-self.training.lanes // self.exchange.workers)
        return turns * sum(one.nbytes for one in self.slices) * self.exchange.workers

    def _fold_lanes(self, run: Callable[[int], LaneLoss | None], table: Tensor, clock: Clock) -> Tensor:
        others = self.layout.buffers.pack_others()
        self._sharded.fetcher.lap = clock.lap
        for turn in range(-(-self.training.lanes // self.exchange.workers)):
            slot = self._slots[turn] if turn < len(self._slots) else None
            self.layout.buffers.restore()
            self._sharded.begin(turn)
            loss = None
            if slot is not None:
                with self._sharded.saving():
                    loss = run(slot.lane)
            clock.lap("forward")
            if loss is not None and slot is not None:
                self._backward_of(loss.total)
                loss.note(table[slot.lane])
                if slot.lane == 0:
                    others = self.layout.buffers.pack_others()
            if slot is not None:
                self._end_lane(slot, computed=loss is not None)
            else:
                self._end_backward()
            clock.lap("backward")
        self._sharded.sender.finish()
        clock.lap("exchange")
        return others

    def _backward_of(self, total: Tensor) -> None:
        self._sharded.begin_backward()
        backward(total)

    def _end_backward(self) -> None:
        self._sharded.end()

    def _reduce(self, weight: float) -> list[GradientRun]:
        sums = [self._sharded.take_sum(section) for section in range(len(self.parts))]
        means = [self.exchange.divided([total], weight) for total in sums]
        return [GradientRun(section, self.parts[section].start, mean) for section, mean in enumerate(means)]

    def _update(self, reduced: list[GradientRun], clock: Clock) -> None:
        super()._update(reduced, clock)
        for run in reduced:
            self._sharded.give_back(run.section, run.values)

    def _share_weights(self) -> None:
        self._sharded.renew()

    def _describe(self) -> str:
        """Say in one line what is divided, and what every worker has."""
        sizes = [sum(section.numel for section in one.sections.values()) for one in self._weights_of]
        divided, rest = sum(sizes[:-1]), sizes[-1]
        if not divided:
            return f"no weight is large enough to be divided: all {rest / 1e6:.2f} M parameters are with every worker"
        return (
            f"{divided / 1e6:.2f} M parameters in {len(self._blocks)} blocks are divided over {self.exchange.workers} "
            f"workers, and fetched by block, {max(sizes[:-1]) / 1e6:.2f} M at most; {rest / 1e6:.2f} M are with every "
            "worker"
        )


def block_number(section: Section) -> int:
    """Return the block that a section belongs to."""
    return int(section.key[2])  # type: ignore[index]


def again(group: Group) -> Group:
    """Return another group of the same ranks, whose messages do not meet those of the first."""
    made = dist.new_group(list(group.ranks))
    return Group(ranks=group.ranks, rank=group.rank, process_group=made, device=group.device)
