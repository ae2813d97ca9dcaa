"""`single`: one device computes every lane, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.exchange.in_process import InProcess
from lockstep.strategies.base import Training
from lockstep.strategies.ddp.strategy import Exact

if TYPE_CHECKING:
    from lockstep.mesh import Mesh


class Single(Exact):
    """All lanes on one worker: what the others are compared with."""

    def __init__(self, mesh: Mesh, training: Training) -> None:
        super().__init__(mesh, training, InProcess(training.units))
