"""The bubble of a model that is cut: measured, as theory has it, and as the times of its layers let expect it."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.report.collect import FinishedRun
from lockstep.report.lane_actions import LaneAction, lane_actions
from lockstep.report.units import share
from lockstep.stages.actions import ORDERS, bubble, lane_order, uneven_bubble
from lockstep.train.schema.run_json import Setup


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """Shares of the time in which lanes go through the stages, from the first action to the last."""

    order: str
    """Of the lanes, see stages/actions.py."""
    measured: float
    """For which a worker computed nothing and passed nothing on: the mean over workers, the median of the steps."""
    theory: float
    """The same if all stages took equally long and passing on took no time."""
    expected: float | None
    """The same for the cut that was chosen, by the times of its layers before the first step; None: not timed."""
    uneven: float
    """The same for the times that the stages took in these steps, if passing on took no time."""
    passing: float
    """For which a worker passed activations or gradients on: the mean over workers."""

    @property
    def in_words(self) -> str:
        """Say it in a line."""
        expected = "" if self.expected is None else f", {share(self.expected)} expected for this cut"
        return f"bubble {share(self.measured)} measured, {share(self.theory)} if all stages took equally long{expected}"


def bubble_of(run: FinishedRun) -> Bubble | None:
    """Return the bubble of a run that recorded its lanes; None of another."""
    stages = {rank.stage for rank in run.result.ranks}
    if len(stages) < 2 or stages != set(range(len(stages))):
        return None
    together: dict[tuple[int, int], list[LaneAction]] = defaultdict(list)
    for action in lane_actions(run):
        together[action.step, action.replica].append(action)
    whole = [actions for actions in together.values() if {one.stage for one in actions} == stages]
    if not whole or any(length(actions) <= 0.0 for actions in whole):
        return None
    order = order_of(run.setup)
    lanes = max(len({one.lane for one in actions}) for actions in whole)
    times = [_stage_seconds(whole, stage) for stage in range(len(stages))]
    return Bubble(
        order=order,
        measured=max(0.0, statistics.median(idle(actions, len(stages)) for actions in whole)),
        theory=bubble(order, len(stages), lanes),
        expected=run.result.expected_bubble,
        uneven=uneven_bubble(order, times, lanes),
        passing=statistics.median(
            math.fsum(one.passing for one in actions) / (length(actions) * len(stages)) for actions in whole
        ),
    )


def middle_bubble(runs: Sequence[FinishedRun]) -> Bubble | None:
    """Return the bubble of the repeat in the middle."""
    bubbles = sorted((one for one in map(bubble_of, runs) if one is not None), key=lambda one: one.measured)
    return bubbles[(len(bubbles) - 1) // 2] if bubbles else None


def order_of(setup: Setup) -> str:
    """Return the order of a run's lanes; a folder may say anything, so one that there is not counts as the default."""
    asked = setup.spec.pipeline_schedule
    return lane_order(setup.spec.strategy, asked if asked in ORDERS else ORDERS[0])


def length(actions: Sequence[LaneAction]) -> float:
    """Return the seconds from the first action to the end of the last."""
    return max(one.end for one in actions) - min(one.start for one in actions)


def idle(actions: Sequence[LaneAction], stages: int) -> float:
    """Return the share of that time for which a stage did nothing, the mean over the stages."""
    return 1.0 - math.fsum(one.end - one.start for one in actions) / (length(actions) * stages)


def _stage_seconds(whole: Sequence[Sequence[LaneAction]], stage: int) -> tuple[float, float]:
    """Return how long a stage computed for a lane's forward and backward, the mean over what was recorded."""
    lanes = max(1, sum(len({one.lane for one in actions if one.stage == stage}) for actions in whole))
    own = [one for actions in whole for one in actions if one.stage == stage]
    forward, backward = (math.fsum(one.seconds for one in own if one.forward == way) for way in (True, False))
    return forward / lanes, backward / lanes
