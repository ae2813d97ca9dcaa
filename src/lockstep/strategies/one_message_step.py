"""The exact step between hosts for a small model: one message from each host to each other one, and nothing comes back.

    1  the ranks of a host meet when their lanes are done
    2  its first rank adds up what the host has, sends sums, buffers, losses and weights of lanes in one message, and
       receives those of the other hosts; the ranks meet: all know all losses
    3  the first rank adds up all in tree order, divides, clips and updates: the same bits on every host
    4  the ranks meet again, and see the new weights

Slices that go there and back (overlapped_step.py) send less between more than two hosts, divide the update, and are
hidden behind backward; but every message takes the CPU from backward, which a small model does not make up for. Hosts
that compute with other vectors or threads may round an update otherwise: they exchange slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.strategies.base import LaneLoss, Training
from lockstep.strategies.clock import Clock, NoClock
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.sliced_optimizer import GradientRun

if TYPE_CHECKING:
    from lockstep.exchange.hosts import ArenaPerHost

MOST = 4 << 20
"""Bytes that a host may send in a step, to all others together."""


def small_enough(training: Training, partials: Sequence[int]) -> bool:
    """Say whether hosts, which have so many partials to send, exchange this model faster whole."""
    trained = [p for p in training.model.parameters() if p.requires_grad]
    floats = [buffer for buffer in training.model.buffers() if buffer.is_floating_point()]
    size = sum(one.numel() * one.element_size() for one in (*trained, *floats))
    return (len(partials) - 1) * max(partials) * size <= MOST


class OneMessageWorker(ExactWorker):
    """One worker of a host; the first one updates the host's weights."""

    exchange: ArenaPerHost

    def __init__(self, training: Training, exchange: ArenaPerHost, device: str) -> None:
        super().__init__(training, exchange, device)
        if not self.replicated:
            self.how = replace(self.how, optimizer="replicated: a small model is updated whole on each host")
        self.answers = exchange.rank == 0
        sections, buffers = self.layout.sections, self.layout.buffers
        self._sums = exchange.whole_sums(
            [*self._partials, *self._buffer_partials],
            [section.used for section in (*sections, *buffers.sections)],
            2 * training.lanes + buffers.pack_others().numel(),
        )
        self._clock: Clock = NoClock()

    def _own_parts(self) -> list[range]:
        first = self.exchange.rank == self.exchange.first_here
        return [range(section.used if first else 0) for section in self.layout.sections]

    def _fold_lanes(self, run: Callable[[int], LaneLoss | None], table: Tensor, clock: Clock) -> Tensor:
        self._clock = clock
        self._sums.begin()
        return super()._fold_lanes(run, table, clock)

    def _tell(self, table: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Do steps 1 and 2."""
        numbers = self.exchange.sum_on_host(torch.cat([table.flatten(), self._own_others(others)]))
        self._clock.lap("wait")
        self._sums.leave(numbers)
        self._sums.arrive()
        self._clock.lap("exchange")
        self.exchange.barrier()
        return self._sums.numbers[: table.numel()].view_as(table), self._sums.numbers[table.numel() :]

    def _reduce(self, weight: float) -> list[GradientRun]:
        """Do step 3, on the first rank of a host."""
        if not self._sums.active:
            return []
        return [GradientRun(number, 0, self._sums.mean(number, weight)) for number in range(len(self.parts))]

    def _all_squares(self, own: Tensor) -> Tensor:
        return own  # of the whole gradient

    def _gather_gradient(self, reduced: list[GradientRun]) -> list[GradientRun]:
        return reduced

    def _share(self, lanes: int) -> None:
        """Put the mean of buffers in place; weights are there."""
        self._sums.put_means(len(self.parts), self._buffer_means, lanes)
