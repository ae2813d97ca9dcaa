"""The exact step on sections: neighbouring large weights, whose sums are known to be final while backward still runs.

What is done with a section that is complete differs: messages between hosts (overlapped_step.py), or an asynchronous
collective (bucketed_step.py). The sums, their order and the update are those of exact_step.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from lockstep.lanes.flat_layout import BLOCK
from lockstep.strategies.base import LaneLoss, Training
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.flat_model import FlatModel, ModelLayout
from lockstep.strategies.lane_slots import LaneSlot

if TYPE_CHECKING:
    from lockstep.exchange.base import Exchange
    from lockstep.strategies.clock import Clock

LARGE = 1 << 12
"""Elements of a gradient whose completion is worth a hook: less than between ranks of a host, as a wire is slower."""
SECTION = 1 << 19
"""Elements after which a section ends."""
SMALL = 0
"""The section of gradients that no hook reports: it is complete after backward."""


def section_keys(groups: Sequence[int], sizes: Sequence[int], workers: int) -> list[tuple[int, int]]:
    """Return the optimizer group and the section of each parameter. Pure.

    Backward computes the last gradients first, so sections are filled, and numbered, from the last parameter on.
    """
    least = max(SECTION, 16 * workers * BLOCK)  # so that what fills up slices stays small beside them
    keys: list[tuple[int, int]] = [(0, 0)] * len(sizes)
    current: dict[int, tuple[int, int]] = {}
    count = SMALL
    for index in reversed(range(len(sizes))):
        group = groups[index]
        if sizes[index] < LARGE:
            keys[index] = (group, SMALL)
            continue
        number, filled = current.get(group, (SMALL, least))
        if filled >= least:
            count += 1
            number, filled = count, 0
        keys[index], current[group] = (group, number), (number, filled + sizes[index])
    return keys


class SectionedWorker(ExactWorker):
    """One worker that learns of each section, in the last lane's backward, when its sums are final."""

    def __init__(self, training: Training, exchange: Exchange, device: str) -> None:
        super().__init__(training, exchange, device)
        sections = self.layout.sections
        numbers = [int(section.key[2]) for section in sections]  # type: ignore[index]
        self._order = sorted(range(len(sections)), key=lambda one: (numbers[one] == SMALL, numbers[one]))
        """The sections as backward completes them, the same on every worker."""
        self._section_of = {slot.index: one for one, section in enumerate(sections) for slot in section.slots}
        self._members = [len(section.slots) if numbers[one] != SMALL else -1 for one, section in enumerate(sections)]
        """How many hooks report a section; -1: none does."""
        self._missing: list[int] = []
        self._rest: list[int] = []
        """After backward: the sections that no hook has reported."""

    def _lay_out(self, groups: list[int], *, part: bool) -> ModelLayout:
        sizes = [p.numel() for p in self.training.model.parameters() if p.requires_grad]
        keys = section_keys(groups, sizes, self.exchange.workers)
        self.flat = FlatModel(self.training.model, keys, self.exchange.workers, part=part, large=LARGE)
        return self.flat

    def _fold_lanes(self, run: Callable[[int], LaneLoss | None], table: Tensor, clock: Clock) -> Tensor:
        try:
            return super()._fold_lanes(run, table, clock)
        except BaseException:
            self.flat.complete = None
            self._abandon()
            raise

    def _before_backward(self, slot: LaneSlot, table: Tensor, loss: LaneLoss | None) -> None:
        """With the last lane, begin to listen."""
        if slot is self._slots[-1]:
            self._missing = list(self._members)
            self._begin(slot, table, loss)
            self.flat.complete = self._reported

    def _reported(self, index: int) -> None:
        section = self._section_of[index]
        self._missing[section] -= 1
        if self._missing[section] == 0:
            self._complete(section)

    def _end_backward(self) -> None:
        super()._end_backward()
        if self.flat.complete is not None:  # the last lane: what no hook has reported is complete now
            self.flat.complete = None
            self._rest = [section for section in self._order if self._missing[section] != 0]

    @abstractmethod
    def _begin(self, slot: LaneSlot, table: Tensor, loss: LaneLoss | None) -> None:
        """Prepare for the sections of this step; `table` has the losses of the lanes before."""

    @abstractmethod
    def _complete(self, section: int) -> None:
        """Use a section whose sums are final."""

    @abstractmethod
    def _abandon(self) -> None:
        """Forget what was begun: the step has failed here."""
