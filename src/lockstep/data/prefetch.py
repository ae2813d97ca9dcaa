"""Reading ahead on a thread: the next batches are read while the current one is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Full, Queue
from typing import Any, TypeVar

T = TypeVar("T")
CHECK_SECONDS = 0.05  # how often a thread with a full queue checks whether the reader has stopped
_END = object()


def prefetched(source: Iterator[T], depth: int) -> Iterator[T]:
    """Yield what `source` yields, read up to `depth` ahead on a thread; its exceptions are raised here.

    1. The thread puts into a queue of `depth` entries and waits while it is full.
    2. This generator takes from the queue; the end and an exception come through the same queue, in order.
    3. However this generator ends (exhausted, closed, freed), it stops the thread and waits for its end.
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
        # A generator must be closed by the thread that ran it, not by the one that frees it.
        getattr(source, "close", lambda: None)()


def _put(queue: Queue[tuple[object, Any]], entry: tuple[object, Any], stop: threading.Event) -> bool:
    """Put an entry; return False if the reader has stopped or the program is ending."""
    while not stop.is_set() and threading.main_thread().is_alive():
        try:
            queue.put(entry, timeout=CHECK_SECONDS)
        except Full:
            continue
        return True
    return False
