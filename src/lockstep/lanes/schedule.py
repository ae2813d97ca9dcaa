"""Which worker computes which samples: pure functions of sizes, with the same result on every rank."""

from __future__ import annotations

from lockstep.errors import BadInput


def owned_lanes(lanes: int, workers: int, rank: int, *, in_turn: bool = False) -> range:
    """Return the lanes of one worker: contiguous ones, or every so many-th where lanes are dealt out in turn."""
    if in_turn:
        return range(rank, lanes, workers)
    return range(rank * lanes // workers, (rank + 1) * lanes // workers)


def lane_samples(samples: int, lanes: int, lane: int) -> range:
    """Return the positions of one lane in a global batch; in a short last batch lanes may be smaller or empty.

    The first lanes take the remainder, so rank 0 is the last to have no samples.
    """
    small, rest = divmod(samples, lanes)
    start = lane * small + min(lane, rest)
    return range(start, start + small + (lane < rest))


def steps_per_epoch(samples: int, global_batch: int, *, drop_last: bool = False) -> int:
    """Return how many global batches an epoch has; the last may be short, unless short ones are dropped."""
    return samples // global_batch if drop_last else -(-samples // global_batch)


def one_sample_lane(samples: int | None, global_batch: int, lanes: int, *, drop_last: bool) -> tuple[int, int] | None:
    """Return the first step of an epoch that has a lane of one sample, and that lane; None if there is none.

    `samples` is None for a stream that does not say how many it has: its last batch is unknown.
    """
    if global_batch == lanes:
        return 0, 0
    if samples is None or drop_last:
        return None
    small, rest = divmod(samples % global_batch, lanes)
    lane = rest if small == 1 else 0 if small == 0 and rest else None
    return None if lane is None else (samples // global_batch, lane)


def check_lanes(lanes: int, workers: int, global_batch: int) -> None:
    """Raise if the lanes cannot be distributed over the workers, or the batch over the lanes, with numbers that can."""
    for name, value in (("workers", workers), ("lanes", lanes), ("global_batch", global_batch)):
        if value < 1:
            raise BadInput(f"found {name}={value}, expected at least 1")
    if workers > lanes:
        raise BadInput(
            f"lanes={lanes} cannot be cut over {workers} workers: use at most {lanes} workers, or --lanes {workers}"
        )
    if global_batch % lanes:
        fitting = [n for n in range(1, global_batch + 1) if global_batch % n == 0 and n >= workers]
        best = min(fitting, key=lambda n: abs(n - lanes), default=None)
        advice = f"--lanes {best}" if best else f"a global batch of {lanes * -(-global_batch // lanes)}"
        raise BadInput(
            f"lanes={lanes} does not divide the global batch of {global_batch} into equal slices: use {advice}"
        )


def check_stages(workers: int, stages: int) -> None:
    """Refuse a number of stages that does not divide the workers."""
    if stages < 1:
        raise BadInput(f"stages={stages}: at least 1 is needed")
    if workers % stages:
        fitting = [str(n) for n in range(1, workers + 1) if workers % n == 0]
        raise BadInput(
            f"{workers} workers cannot be divided into replicas of {stages} stages: use {', '.join(fitting)} stages, "
            f"or {-(-workers // stages) * stages} workers"
        )
