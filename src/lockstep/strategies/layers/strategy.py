"""`layers`: one lane at a time goes through all stages and back."""

from __future__ import annotations

from lockstep.stages.actions import ONE_LANE
from lockstep.strategies.staged import Staged


class Layers(Staged):
    """What most tutorials call model parallelism: of all workers, one computes at a time."""

    order = ONE_LANE
