"""Where a step's time goes: laps of one stopwatch, so the parts add up to the whole."""

from __future__ import annotations

import time
from typing import Final, Literal, get_args

Part = Literal["data", "forward", "backward", "exchange", "optimizer", "wait"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
"""`exchange` moves and combines gradients, and what follows from them; `wait` is for the slowest worker."""

Span = tuple[str, float, float]
"""A part, its start after the step's start, and how long it took; in seconds."""


class Clock:
    """Seconds by part, and the laps themselves for a timeline."""

    def __init__(self) -> None:
        self.began = time.time()
        """When the step began, in seconds since the epoch: all processes of a host share this clock."""
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.spans: list[Span] = []
        self.hidden = 0.0
        """Seconds of exchange that ran behind backward, and cost nothing."""
        self.ready: float | None = None
        """When this worker had all its gradients, where waiting for the others cannot be told from the exchange."""
        self._first = self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Book the time since the last lap on a part."""
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self.spans.append((part, self._last - self._first, now - self._last))
        self._last = now

    def move_tail(self, part: str, seconds: float) -> None:
        """Book the last `seconds` of the last lap on another part."""
        name, start, length = self.spans.pop()
        tail = min(max(seconds, 0.0), length)
        self.spans += [(name, start, length - tail), (part, start + length - tail, tail)]
        self.seconds[name] -= tail
        self.seconds[part] += tail


class NoClock(Clock):
    """For runs that are not measured: nothing is read, nothing is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = {}

    def lap(self, part: str) -> None:
        """Do nothing."""

    def move_tail(self, part: str, seconds: float) -> None:
        """Do nothing."""
