"""Where to cut a chain of layers (pure): the smallest slowest stage, under a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from lockstep.byte_sizes import write_bytes
from lockstep.errors import BadInput, nearest

AUTO = "auto"
IMBALANCE = 2.0
"""A cut whose slowest stage takes so many times as long as the best cut's is warned of."""


class Cost(NamedTuple):
    """What one layer takes."""

    seconds: float
    """Forward and backward of one lane."""
    bytes: float = 0.0
    """Its weights with gradients and optimizer state."""
    lane_bytes: float = 0.0
    """What it keeps of each lane for backward."""
    joined: bool = False
    """Whether it cannot be cut from the layer before it."""


LanesHeld = Callable[[int, int], int]
"""Of how many lanes a stage keeps what backward needs at once, by the number of stages and its own."""


def one_lane(stages: int, stage: int) -> int:
    """Hold one lane at a time, as `layers` does."""
    return 1


def stage_ranges(cut: Sequence[int], layers: int) -> list[range]:
    """Return the layers of each stage; a cut is the first layer of every stage but the first."""
    return [range(first, last) for first, last in pairwise((0, *cut, layers))]


def slowest(cut: Sequence[int], costs: Sequence[Cost]) -> float:
    """Return the seconds of the slowest stage."""
    return max(sum(costs[layer].seconds for layer in part) for part in stage_ranges(cut, len(costs)))


def stage_bytes(cut: Sequence[int], costs: Sequence[Cost], in_flight: LanesHeld = one_lane) -> list[float]:
    """Return the memory of each stage."""
    parts = stage_ranges(cut, len(costs))
    held = [in_flight(len(parts), stage) for stage in range(len(parts))]
    return [
        sum(costs[layer].bytes + lanes * costs[layer].lane_bytes for layer in part)
        for part, lanes in zip(parts, held, strict=True)
    ]


def best_cut(
    costs: Sequence[Cost], stages: int, most_bytes: float | None = None, in_flight: LanesHeld = one_lane
) -> list[int] | None:
    """Return the cut whose slowest stage is the fastest; None if every cut has a stage of more than `most_bytes`.

    Of equal ones, the one whose stages are the smallest from the last on.
    """
    seconds = [0.0, *accumulate(cost.seconds for cost in costs)]
    size = _sizes(costs, stages, in_flight)

    def time(stage: int, first: int, last: int) -> float | None:
        fits = most_bytes is None or size(stage, first, last) <= most_bytes
        return seconds[last] - seconds[first] if fits else None

    return _smallest_worst(costs, stages, time)


def leanest_cut(costs: Sequence[Cost], stages: int, in_flight: LanesHeld = one_lane) -> list[int]:
    """Return the cut whose largest stage needs the least memory."""
    cut = _smallest_worst(costs, stages, _sizes(costs, stages, in_flight))
    assert cut is not None  # there is no limit
    return cut


def _sizes(costs: Sequence[Cost], stages: int, in_flight: LanesHeld) -> Callable[[int, int, int], float]:
    """Return a function that gives the memory of a stage, by its number and its layers."""
    held = [0.0, *accumulate(cost.bytes for cost in costs)]
    kept = [0.0, *accumulate(cost.lane_bytes for cost in costs)]
    return lambda stage, first, last: held[last] - held[first] + in_flight(stages, stage) * (kept[last] - kept[first])


def _smallest_worst(
    costs: Sequence[Cost], stages: int, weigh: Callable[[int, int, int], float | None]
) -> list[int] | None:
    """Return the cut whose worst stage is the best; `weigh` gives a stage's value, None if it may not be so."""
    layers = len(costs)
    # reach[k][n]: the worst of k stages over the first n layers, and where the last of them starts
    reach: list[list[tuple[float, int] | None]] = [[None] * (layers + 1) for _ in range(stages + 1)]
    reach[0][0] = (0.0, 0)
    for count in range(1, stages + 1):
        for last in range(count, layers + 1):
            options = [
                (max(before[0], value), first)
                for first in range(count - 1, last)
                if not (first and costs[first].joined)
                and (before := reach[count - 1][first]) is not None
                and (value := weigh(count - 1, first, last)) is not None
            ]
            reach[count][last] = min(options, key=lambda option: (option[0], -option[1])) if options else None
    if reach[stages][layers] is None:
        return None
    cut, last = [], layers
    for count in range(stages, 0, -1):
        entry = reach[count][last]
        assert entry is not None
        last = entry[1]
        cut.append(last)
    return cut[::-1][1:]


def check_memory(
    costs: Sequence[Cost], cut: Sequence[int] | None, stages: int, limit: int, in_flight: LanesHeld
) -> None:
    """Refuse a limit of memory that a cut, or without one every cut, exceeds; say which limit and which stages do."""
    if cut is not None and max(stage_bytes(cut, costs, in_flight)) <= limit:
        return
    least = _least(costs, stages, in_flight)
    which = "every cut" if cut is None else "this --cut"
    text = f"--stage-memory {write_bytes(limit)}: {which} into {stages} stages has a larger stage"
    if least <= limit:
        raise BadInput(f"{text}: leave --cut out, which gives stages of at most {write_bytes(least)}")
    more = _enough_stages(costs, stages, limit, in_flight)
    advice = f"or use {more} stages, --workers {more}" if more else "more stages are not enough: use more --lanes"
    raise BadInput(f"{text}: {stages} stages need --stage-memory {write_bytes(least)} or more; {advice}")


def _enough_stages(costs: Sequence[Cost], stages: int, limit: int, in_flight: LanesHeld) -> int | None:
    """Return the fewest stages, more than these, of which none needs more; None if one layer alone does."""
    if max(cost.bytes + cost.lane_bytes for cost in costs) > limit:
        return None
    counts = range(stages + 1, pieces(costs) + 1)
    return next((count for count in counts if _least(costs, count, in_flight) <= limit), None)


def _least(costs: Sequence[Cost], stages: int, in_flight: LanesHeld) -> float:
    return max(stage_bytes(leanest_cut(costs, stages, in_flight), costs, in_flight))


def pieces(costs: Sequence[Cost]) -> int:
    """Return into how many parts layers can be cut."""
    return 1 + sum(not cost.joined for cost in costs[1:])


def check_layers(layers: int, stages: int, why: str = "") -> None:
    """Refuse more stages than layers; `why` says what holds some of them together."""
    if stages > layers:
        less = f"use --stages {layers} or fewer" if layers > 1 else "use ddp"
        raise BadInput(
            f"{stages} stages need at least {stages} layers, and the model has {layers} that can be cut apart: {less}, "
            f"or name smaller layers in Recipe(stages=...){why and f'. Not cut apart: {why}'}"
        )


def read_cut(text: str, names: Sequence[str], stages: int) -> list[int]:
    """Read a cut that was typed: the first layer of every stage but the first, by number or by name."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) != stages - 1:
        raise BadInput(
            f"--cut {text}: {stages} stages are cut in {stages - 1} place{'s' if stages != 2 else ''}, and "
            f"{len(words)} were given: name the first layer of every stage but the first"
        )
    cut = [_layer(word, names) for word in words]
    if any(later <= earlier for earlier, later in pairwise((0, *cut))):
        raise BadInput(f"--cut {text}: each stage must have a layer, so the numbers must rise, from 1 up")
    return cut


def _layer(word: str, names: Sequence[str]) -> int:
    if word in names:
        return list(names).index(word)
    if word.isdigit() and int(word) < len(names):
        return int(word)
    if word.isdigit():
        raise BadInput(f"--cut {word}: the model has {len(names)} layers, from 0 to {len(names) - 1}")
    raise BadInput(
        f"--cut {word}: the layers are {', '.join(names)}, and none has that name{nearest(word, list(names))}"
    )
