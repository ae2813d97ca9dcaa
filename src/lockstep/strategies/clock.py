"""How long each part of a step takes: laps of one stopwatch, so the parts add up to the whole step."""

from __future__ import annotations

import time
from typing import Final, Literal, get_args

Part = Literal["data", "forward", "backward", "exchange", "optimizer", "wait"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
"""`exchange` moves and combines gradients and what follows from them; `wait` is the wait for the slowest worker."""

Span = tuple[str, float, float, int | None]
"""(part, start after the step's start, duration, lane), in seconds; lane is None for what is not of one lane."""


class Clock:
    """Seconds by part, and the laps themselves for a timeline."""

    def __init__(self) -> None:
        self.began = time.time()
        """When the step began, in seconds since the epoch: all processes of a host share this clock."""
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.spans: list[Span] = []
        self.hidden = 0.0
        """Seconds of exchange that overlapped with backward."""
        self.ready: float | None = None
        """When this worker had all its gradients, if waiting and exchange cannot be distinguished on one worker."""
        self._left_at: float | None = None
        self._first = self._last = time.perf_counter()

    def lap(self, part: str, lane: int | None = None) -> None:
        """Add the time since the last lap to a part; a model that is cut says which lane it was for."""
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self.spans.append((part, self._last - self._first, now - self._last, lane))
        self._last = now

    def begin_hidden(self) -> None:
        """Note that the first gradients leave while backward computes others."""
        self._left_at = time.perf_counter()

    def end_hidden(self) -> None:
        """Note that backward has ended: what left before it was hidden until now."""
        if self._left_at is not None:
            self.hidden = time.perf_counter() - self._left_at

    def read(self) -> None:
        """Book laps that were not known yet, where an accelerator has them; the host has waited for it."""

    def move_tail(self, part: str, seconds: float) -> None:
        """Move the last `seconds` of the last lap to another part."""
        name, start, length, lane = self.spans.pop()
        tail = min(max(seconds, 0.0), length)
        self.spans += [(name, start, length - tail, lane), (part, start + length - tail, tail, lane)]
        self.seconds[name] -= tail
        self.seconds[part] += tail


class NoClock(Clock):
    """For runs that are not measured: it reads and stores no times."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = {}

    def lap(self, part: str, lane: int | None = None) -> None:
        """Do nothing."""

    def begin_hidden(self) -> None:
        """Do nothing."""

    def move_tail(self, part: str, seconds: float) -> None:
        """Do nothing."""
