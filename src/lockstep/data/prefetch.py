"""Reading ahead on a thread: the next batches are made while this one is trained on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Full, Queue
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_SECONDS = 0.05  # how often a thread with a full queue looks whether anybody still wants it
_END = object()


def prefetched(source: Iterator[T], depth: int) -> Iterator[T]:
    """Yield what `source` yields, made up to `depth` ahead; its exceptions are raised here.

    1. The thread puts into a queue of `depth` places and waits when it is full.
    2. This generator takes from it; the end and a failure come through the same queue, in order.
    3. However this generator ends (exhausted, closed, dropped), the thread is told, and has ended when it does.
    """
    queue: Queue[tuple[object, Any]] = Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(source, queue, stop), name="lockstep prefetch")
    thread.start()
    try:
        while True:
            kind, value = queue.get()
            if kind is _END:
                if value is not None:
                    raise value
                return
            yield value
    finally:
        stop.set()
        thread.join()


def _fill(source: Iterator[T], queue: Queue[tuple[object, Any]], stop: threading.Event) -> None:
    try:
        for value in source:
            if not _put(queue, (None, value), stop):
                return
        _put(queue, (_END, None), stop)
    except BaseException as error:
        _put(queue, (_END, error), stop)
    finally:
        # A generator is closed by the thread that ran it, not by whoever drops it last.
        getattr(source, "close", lambda: None)()


def _put(queue: Queue[tuple[object, Any]], entry: tuple[object, Any], stop: threading.Event) -> bool:
    """Put, unless nobody is there to take: the reader has stopped, or the program is ending."""
    while not stop.is_set() and threading.main_thread().is_alive():
        try:
            queue.put(entry, timeout=LOOK_SECONDS)
        except Full:
            continue
        return True
    return False
