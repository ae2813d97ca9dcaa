"""What a step did, and how a strategy came to run, as records and reports have it; no torch is needed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.strategies.clock import Clock, Span


@dataclass(frozen=True)
class StepStats:
    """What one step did on this worker."""

    step: int
    """Counted over the whole run."""
    loss: float
    """The weighted mean over this process's lanes; the mean over processes by weight is the global one."""
    weight: float
    """Of this process's lanes."""
    seconds: Mapping[str, float]
    """By part of the step, see `clock.PARTS`."""
    spans: Sequence[Span] = ()
    """The same as laps, in order."""
    hidden: float = 0.0
    """Seconds of exchange that ran behind backward."""
    ready: float | None = None
    """When this worker had all its gradients, where `wait` is part of `exchange`; seconds since the epoch."""
    sent: int = 0
    """Bytes of gradients that this worker put into the exchange."""
    global_loss: float | None = None
    """The weighted mean over all lanes, where the step knows it: with `single`, `dp` and `ddp`; else None."""

    @property
    def known_loss(self) -> float:
        """The global loss where this process knows it, else that of its own lanes."""
        return self.loss if self.global_loss is None else self.global_loss

    @classmethod
    def of(
        cls, step: int, loss: float, weight: float, *, clock: Clock, sent: int, global_loss: float | None = None
    ) -> StepStats:
        """Return the stats of a step that a clock was kept of."""
        clock.read()
        return cls(step, loss, weight, clock.seconds, clock.spans, clock.hidden, clock.ready, sent, global_loss)


@dataclass(frozen=True, kw_only=True)
class How:
    """How a strategy came to run on this world, for records and reports; empty where there is nothing to tell."""

    exchange: str = ""
    """What goes between workers: `in process`, `arena`, `arena + gloo`, `collectives over gloo`, ..."""
    optimizer: str = ""
    """`on slices`, or `replicated: ` and why."""
    cut: str = ""
    """Of a model that is cut: each stage's layers, parameters and measured time, and the bubble to expect."""
    bubble: float | None = None
    """The bubble to expect with this cut; None where its layers were not timed."""
    shards: str = ""
    """Of weights that are divided: how many, in how many blocks, and what every worker has."""
