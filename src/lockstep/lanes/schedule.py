"""Who computes which samples: pure functions of sizes, the same answer on every rank."""

from __future__ import annotations

from lockstep.errors import BadInput


def owned_lanes(lanes: int, workers: int, rank: int) -> range:
    """Return the contiguous lanes of one worker."""
    return range(rank * lanes // workers, (rank + 1) * lanes // workers)


def lane_samples(samples: int, lanes: int, lane: int) -> range:
    """Return the positions of one lane in a global batch; a short last batch leaves lanes smaller or empty.

    The first lanes take the remainder, so that rank 0 is the last to run dry.
    """
    small, rest = divmod(samples, lanes)
    start = lane * small + min(lane, rest)
    return range(start, start + small + (lane < rest))


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Return how many global batches an epoch has; the last may be short, none is dropped."""
    return -(-samples // global_batch)


def check_lanes(lanes: int, workers: int, global_batch: int) -> None:
    """Refuse numbers of lanes and workers that cannot be scheduled, with numbers that can."""
    if workers < 1:
        raise BadInput(f"workers={workers}: at least 1 is needed")
    if lanes < 1:
        raise BadInput(f"lanes={lanes}: at least 1 is needed")
    if global_batch < 1:
        raise BadInput(f"global_batch={global_batch}: at least 1 is needed")
    if workers > lanes:
        raise BadInput(
            f"lanes={lanes} cannot be cut over {workers} workers: use at most {lanes} workers, or --lanes {workers}"
        )
    if global_batch % lanes:
        fitting = [n for n in range(1, global_batch + 1) if global_batch % n == 0 and n >= workers]
        best = min(fitting, key=lambda n: abs(n - lanes), default=None)
        advice = f"--lanes {best}" if best else f"a global batch of {lanes * -(-global_batch // lanes)}"
        raise BadInput(
            f"lanes={lanes} do not fit the global batch of {global_batch}: lanes are equal slices of it; use {advice}"
        )
