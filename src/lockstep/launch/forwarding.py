"""The signal before a time limit, sent to the command: it goes on to the ranks, which act on it between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from lockstep.train.stop_signal import NUMBER


@contextlib.contextmanager
def forwarding(send: Callable[[signal.Signals], None], *, wanted: bool) -> Iterator[None]:
    """Pass the signal on while ranks run, if it is wanted: if not, it ends the command, as ever."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(NUMBER, lambda number, frame: send(NUMBER))
    try:
        yield
    finally:
        signal.signal(NUMBER, before)
