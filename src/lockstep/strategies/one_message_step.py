"""The exact step between hosts for a small model: one message from each host to each other one, and nothing comes back.

    1  the ranks of a host meet when their lanes are done; its first rank adds up what the host has
    2  it sends sums, buffers, losses and weights of lanes in one message, and receives those of the other hosts
    3  it adds up all in tree order, divides, clips and updates: the same bits on every host
    4  the ranks of the host meet again, and see the new weights

Slices that go there and back (overlapped_step.py) send less between more than two hosts, divide the update, and are
hidden behind backward; but every message takes the CPU from backward, which a small model does not make up for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.strategies.base import LaneLoss, Training
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.sliced_optimizer import GradientRun

if TYPE_CHECKING:
    from lockstep.exchange.hosts import ArenaPerHost
    from lockstep.strategies.clock import Clock

MOST = 4 << 20
"""Bytes that a host may send in a step."""


def small_enough(training: Training, hosts: int) -> bool:
    """Say whether so many hosts exchange the gradients of this model faster whole."""
    trained = sum(p.numel() * p.element_size() for p in training.model.parameters() if p.requires_grad)
    return (hosts - 1) * trained <= MOST


class OneMessageWorker(ExactWorker):
    """One worker of a host; the first one updates the host's weights."""

    exchange: ArenaPerHost

    def __init__(self, training: Training, exchange: ArenaPerHost, device: str) -> None:
        super().__init__(training, exchange, device)
        self.answers = exchange.rank == 0
        self._waiting = self._exchanging
        others = self.layout.buffers.pack_others().numel()
        self._sums = exchange.whole_sums(
            [*self._partials, *self._buffer_partials],
            [*(section.used for section in self.layout.sections), *self._buffer_lengths],
            2 * training.lanes + others,
        )

    def _own_parts(self) -> list[range]:
        first = self.exchange.rank == self.exchange.first_here
        return [range(section.used if first else 0) for section in self.layout.sections]

    def _fold_lanes(self, run: Callable[[int], LaneLoss | None], table: Tensor, clock: Clock) -> Tensor:
        self._sums.begin()
        return super()._fold_lanes(run, table, clock)

    def _tell(self, table: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Do steps 1 and 2; of buffers that are no floats, the owner of lane 0 has the right ones."""
        numbers = torch.cat([table.flatten(), others if self.exchange.rank == 0 else torch.zeros_like(others)])
        self._sums.leave(self.exchange.sum_on_host(numbers))
        self._sums.arrive()
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
        if self._sums.active:
            for number, mean in enumerate(self._buffer_means):
                mean[: self._buffer_lengths[number]] = self._sums.mean(len(self.parts) + number, lanes)
