"""What decides how much memory a stage of a cut model needs, beside its layers (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.stages.actions import ONE_LANE, most_in_flight, stage_actions


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """How often a stage holds its weights' bytes, and of how many lanes at once it keeps what backward needs."""

    copies: float
    """Bytes held for each byte of a weight: itself, its gradients, its optimizer state."""
    order: str
    """Of the lanes, see actions.py."""
    lanes: int
    """Of one replica."""
    limit: int | None = None
    """The most bytes that a stage may need; None: no limit."""

    def in_flight(self, stages: int, stage: int) -> int:
        """Return of how many lanes a stage keeps what backward needs, at once."""
        return most_in_flight(stage_actions(self.order, stages, stage, self.lanes))


UNLIMITED = StageMemory(copies=4.0, order=ONE_LANE, lanes=1)
"""Of each weight its gradient and two values of optimizer state; where nobody asks for a limit."""
