"""Of torch.profiler: memory over time, which only its internal results tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.profiler import profile


def most_memory(seen: profile) -> int:
    """Return the most bytes held at once while a profile with `profile_memory=True` was taken.

    The public key_averages() adds allocations up and does not keep their order.
    """
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()  # type: ignore[attr-defined]
        most = max(most, held)
    return most
