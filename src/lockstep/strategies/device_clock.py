"""How long each part of a step takes on an accelerator: laps are events in its stream, read where the host waits.

    host     starts forward, backward | waits for the losses, reads events | starts the update     next step ...
    device   .. update of the step before, forward, backward .............| update, ...

The host runs ahead of a device: its own clock tells when work was started, not how long it took. An event is passed
when all work before it in the stream is done, and has the device's time. No event is waited for: a step reads those
that were passed when the host had waited for the losses, and the update after that counts with the next step. So each
part is that of the time from one such wait to the next, which on the host is a step, too. What a device does between
two steps (an evaluation) belongs to no part.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from lockstep.strategies.clock import Clock, NoClock

HIDDEN = "hidden"
"""In place of a part: exchange behind backward, which other laps cover."""
MILLI = 1e-3


class EventLap(NamedTuple):
    """A lap between two events."""

    part: str
    lane: int | None
    begin: torch.Event
    end: torch.Event


def clock_maker(device: str, *, measure: bool) -> Callable[[], Clock]:
    """Return what makes the clock of each step of one worker."""
    if not measure:
        return NoClock
    return Clock if device == "cpu" else partial(DeviceClock, device, deque())


class DeviceClock(Clock):
    """Seconds by part on an accelerator; the clocks of a worker's steps share the laps that nobody has read yet."""

    def __init__(self, device: str, unread: deque[EventLap]) -> None:
        super().__init__()
        self._device, self._unread = device, unread
        self._was_read = False
        self._left: torch.Event | None = None
        self._mark = self._now()

    def lap(self, part: str, lane: int | None = None) -> None:
        """Let a part end here in the stream."""
        now = self._now()
        self._unread.append(EventLap(part, lane, self._mark, now))
        self._mark = now

    def move_tail(self, part: str, seconds: float) -> None:
        """Do nothing: how long the last lap is will be known later."""

    def begin_hidden(self) -> None:
        """Note where in the stream the first gradients leave."""
        self._left = self._now()

    def end_hidden(self) -> None:
        """Note where in the stream backward has ended."""
        if self._left is not None:
            self._unread.append(EventLap(HIDDEN, None, self._left, self._now()))

    def read(self) -> None:
        """Book the laps that the device has passed; the first call of a step counts."""
        if self._was_read:
            return
        self._was_read = True
        passed: list[EventLap] = []
        while self._unread and self._unread[0].end.query():
            passed.append(self._unread.popleft())
        # The host has just waited for the device: the last lap ends now, and the others are so much earlier.
        now = time.perf_counter() - self._first
        for lap in passed:
            length = _seconds(lap.begin, lap.end)
            if lap.part == HIDDEN:
                self.hidden += length
                continue
            self.seconds[lap.part] += length
            start = now - _seconds(lap.begin, passed[-1].end)  # less than 0: the update may have begun before this step
            self.spans.append((lap.part, start, length, lap.lane))

    def _now(self) -> torch.Event:
        event = torch.Event(device=self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event


def _seconds(begin: torch.Event, end: torch.Event) -> float:
    return begin.elapsed_time(end) * MILLI
