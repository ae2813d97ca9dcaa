"""`single`: one device computes every lane, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.errors import BadInput
from lockstep.exchange.in_process import InProcess
from lockstep.strategies.base import Training
from lockstep.strategies.ddp import Exact

if TYPE_CHECKING:
    from lockstep.mesh import Mesh


class Single(Exact):
    """All lanes on one worker: what the others are compared with."""

    name = "single"

    def __init__(self, mesh: Mesh, training: Training) -> None:
        if mesh.world.size != 1 or training.workers != 1:
            count = max(mesh.world.size, training.workers)
            raise BadInput(f"strategy single trains on one worker, and there are {count}: use --workers 1")
        super().__init__(mesh, training, InProcess(training.units))
