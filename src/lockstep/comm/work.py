"""Operations run in the order of issue: at once in the caller's thread, or later in a background thread.

[Note: who runs an operation]
The thread that runs operations holds the lock `_turn`. A synchronous call with nothing pending takes the turn and runs
in its own thread: no hand-over, no wake-up. An asynchronous one is appended to `_pending`, and the background thread
runs it; a caller that waits for it while the turn is free runs the pending operations itself, in order.

[Note: who keeps a Work]
C++ code that gets a Work keeps the C++ half of it. The Python half, which knows how to wait, is freed with Python's
last reference, and the other half would then wait for ever. Stock DDP does this in
`join(divide_by_initial_world_size=False)`: the all-reduce that counts the ranks still training is issued by forward,
dropped by Python, and waited for by backward. So a group keeps references to its last few asynchronous Works if their
tensors are small, as such counts are.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from lockstep.errors import PeerLost
from lockstep.torch_compat.process_group import PythonWork

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from torch import Tensor

MAX_KEPT = 16
MAX_KEPT_BYTES = 1024

_futures = threading.Lock()
"""Held while a Work becomes done and while its future is made: each of the two checks the other."""


def _unnamed() -> str:
    return "an operation"


class Work(PythonWork):
    """One operation that may still be under way."""

    def __init__(self, result: list[Tensor]) -> None:
        super().__init__()
        self._result = result
        self._error: BaseException | None = None
        self._done = False
        self._running = threading.Lock()
        self._running.acquire()
        self._future: Future[Any] | None = None
        self._source = -1
        self.help: Callable[[Work], None] | None = None
        """Lets a waiting thread run the pending operations."""
        self.where: Callable[[], str] = _unnamed
        """Names what is being waited for."""

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the operation as done and wake the threads that wait for it."""
        with _futures:
            self._error = error
            self._done = True
            future = self._future
        self._running.release()
        if future is not None:
            self._settle(future)

    def _settle(self, future: Future[Any]) -> None:
        if self._error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until done; raise what the operation raised."""
        if not self._done:
            seconds = timeout.total_seconds() if timeout else 0
            if self.help is not None and seconds <= 0:
                self.help(self)  # not if the caller has a timeout: the operation knows only that of its group
            if not self._running.acquire(timeout=seconds if seconds > 0 else -1):
                raise PeerLost(f"Timed out: {self.where()}: not done within the {seconds:g} s of Work.wait()")
            self._running.release()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether the operation has ended, with or without an error."""
        return self._done

    def is_success(self) -> bool:
        """Return whether the operation has ended without an error."""
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        """Return what the operation raised."""
        return self._error

    def synchronize(self) -> None:
        """Wait until done."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Wait until done and return the tensors."""
        self.wait()
        return self._result

    def get_future(self) -> Future[Any]:
        """Return a future of the tensors."""
        with _futures:
            future = self._future
            if future is None:
                future = self._future = Future()
                settle = self._done
            else:
                settle = False
        if settle:
            self._settle(future)
        return future

    def set_source(self, rank: int) -> None:
        """Note the sender of a received message."""
        self._source = rank

    def source_rank(self) -> int:
        """Return the sender of a received message."""
        return self._source


class DoneWork(Work):
    """An operation that ran at once without an error: cheap to create, because most are of this kind."""

    _error = None
    _done = True
    _future: Future[Any] | None = None
    _source = -1

    def __init__(self, result: list[Tensor]) -> None:
        PythonWork.__init__(self)
        self._result = result

    def hold(self, result: list[Tensor]) -> None:
        """Become the Work of another operation."""
        self._result, self._future = result, None


class OperationQueue:
    """The operations of one group, one at a time, in order; see [Note: who runs an operation]."""

    def __init__(self, name: str, set_background: Callable[[bool], None], where: Callable[[], str]) -> None:
        self._name, self._where = name, where
        self._set_background = set_background
        self._turn = threading.Lock()
        self._pending: deque[tuple[Work, Callable[[], None]]] = deque()
        self._kept: deque[Work] = deque(maxlen=MAX_KEPT)
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def take_turn(self) -> bool:
        """Take the turn if nothing is pending; the caller must then release it."""
        return not self._pending and self._turn.acquire(blocking=False)

    def release_turn(self) -> None:
        """Release the turn, and let the background thread run what was submitted meanwhile."""
        self._turn.release()
        if self._pending:
            self._wake.put(None)

    def call(self, operation: Callable[[], None], result: list[Tensor]) -> Work:
        """Run an operation and return when it is done."""
        if self.take_turn():
            try:
                operation()
            finally:
                self.release_turn()
            return DoneWork(result)
        work = self.submit(operation, result)
        work.wait()
        return work

    def submit(self, operation: Callable[[], None], result: list[Tensor]) -> Work:
        """Let the background thread, or a thread that waits for it, run an operation."""
        work = Work(result)
        work.help, work.where = self._help, self._where
        if sum(tensor.numel() * tensor.element_size() for tensor in result) <= MAX_KEPT_BYTES:
            self._kept.append(work)  # see [Note: who keeps a Work]
        self._pending.append((work, operation))
        if self._thread is None:
            self._thread = threading.Thread(target=self._background, name=self._name, daemon=True)
            self._thread.start()
        if threading.current_thread() is self._thread:
            # Issued by a callback of a future, which may wait for it and so block this thread.
            threading.Thread(target=self._drain, name=f"{self._name}-more", daemon=True).start()
        else:
            self._wake.put(None)
        return work

    def close(self) -> None:
        """Wait for the pending operations, and end the thread."""
        self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._wake.put(None)
            self._thread.join()
            self._thread = None

    def _next(self, *, background: bool) -> bool:
        """Run the first pending operation; return whether there was one and the turn was free."""
        if not self._turn.acquire(blocking=background):
            return False
        try:
            if not self._pending:
                return False
            work, operation = self._pending[0]
            error: BaseException | None = None
            self._set_background(background)
            try:
                operation()
            except BaseException as caught:  # the waiter gets it
                error = caught
            self._set_background(False)
            self._pending.popleft()
        finally:
            self._turn.release()
        work.finish(error)  # without the turn: callbacks of the future may issue operations themselves
        return True

    def _help(self, work: Work) -> None:
        while not work.is_completed() and self._next(background=False):
            pass
        if self._pending:
            self._wake.put(None)

    def _drain(self) -> None:
        while self._next(background=True):
            pass

    def _background(self) -> None:
        while not self._closed or self._pending:
            self._wake.get()
            self._drain()
