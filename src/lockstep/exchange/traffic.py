"""What goes between workers while backward still computes: sums of finished sections one way, new weights the other.

    main thread                                  courier (a thread)
 1  `begin`: receives are posted                 learns every lane's loss and weight
 2  backward; `complete(section)`                for each piece, in order:
    once its gradients are final: they leave  3    `arrived`: waits for what others have of the own slice
 5  `everyone_is_done`: no worker of this host   4    the piece is added up, divided, updated; `give` sends it, and
    reads weights any more; the rest leaves            `take` waits for the other slices of it
 6  `place`: those that waited go in place
 7  the courier is done; `settle`: so do the last

[Note: new weights wait]
While backward runs, nobody knows who will still read a weight: a model may use it without a gradient, or compute a part
once more. So new weights stay in memory that the exchange has anyway until all workers that share the weights are done:
the own slice where others' sums came in, the other slices where the sums lay that left. Later ones go in place at once.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from lockstep.errors import LockstepError


class Parcel(NamedTuple):
    """The same run of elements in every slice of a section: what is sent, added up and updated at a time."""

    section: int
    low: int
    """Its first element, counted in the slice."""
    high: int
    """One past its last."""


def cut_pieces(lengths: Sequence[tuple[int, int]], most: int) -> list[Parcel]:
    """Return the pieces of sections, given as (number, length of a slice), in their order."""
    return [
        Parcel(number, low, min(low + most, length)) for number, length in lengths for low in range(0, length, most)
    ]


class Abandoned(LockstepError):
    """The step failed on this worker: what its courier waits for does not come."""


class Traffic(ABC):
    """One worker's messages of a step, step after step."""

    def __init__(self) -> None:
        self.over = threading.Event()
        """Set when no worker that shares these weights computes any more, see [Note: new weights wait]."""
        self.first_left: float | None = None
        """When the first sums of this step left."""

    @abstractmethod
    def begin(self) -> None:
        """Start a step."""

    @abstractmethod
    def complete(self, section: int) -> None:
        """Say that this worker's gradients of a section are final: they leave as soon as they can."""

    @abstractmethod
    def everyone_is_done(self) -> None:
        """Say that backward is over on all workers of this host: the rest leaves, and weights may change."""

    @abstractmethod
    def arrived(self, piece: Parcel) -> list[Tensor]:
        """Wait for all that belongs into the own slice of a piece; the parts, in the order in which they are added."""

    @abstractmethod
    def give(self, piece: Parcel, new: Tensor) -> None:
        """Send the own slice's new weights; `new` stays as it is until `settle`."""

    @abstractmethod
    def take(self, piece: Parcel) -> None:
        """Begin to receive the new weights of the other slices."""

    @abstractmethod
    def place(self) -> None:
        """Put the new weights that have waited in place, while the courier is at work on later ones."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all weights have come and gone, and put them in place."""

    @abstractmethod
    def total(self, section: int) -> Tensor:
        """Return the own slice's sum, where `arrived` and the additions have left it."""

    @abstractmethod
    def abandon(self) -> None:
        """Let a courier that waits for this worker end: the step has failed."""

    def _leaves(self) -> None:
        if self.first_left is None:
            self.first_left = time.perf_counter()


class Courier:
    """Runs a function on a thread of its own; what it raises is raised where its end is waited for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        # A daemon: where a peer has vanished it may wait for ever. It inherits how this thread treats denormals.
        self._thread = threading.Thread(target=self._run, name="lockstep exchange", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Wait for its end."""
        self._thread.join()
        self.check()

    def wait_for(self, event: threading.Event) -> None:
        """Wait for something that it does, or for its failure."""
        while not event.wait(0.05) and self._thread.is_alive():
            pass
        if not event.is_set():
            self.finish()

    def check(self) -> None:
        """Raise what it raised."""
        if self._error is not None:
            raise self._error
