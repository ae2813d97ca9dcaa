"""Where to cut a chain of layers (pure): the smallest slowest stage, under a limit of memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from lockstep.errors import BadInput, nearest

AUTO = "auto"
IMBALANCE = 2.0
"""A cut whose slowest stage takes so many times as long as the best cut's is warned of."""


class Cost(NamedTuple):
    """What one layer takes for one lane."""

    seconds: float
    """Forward and backward."""
    bytes: float = 0.0
    """Its weights with gradients and optimizer state, and what it keeps for backward."""


def stage_ranges(cut: Sequence[int], layers: int) -> list[range]:
    """Return the layers of each stage; a cut is the first layer of every stage but the first."""
    return [range(first, last) for first, last in pairwise((0, *cut, layers))]


def slowest(cut: Sequence[int], costs: Sequence[Cost]) -> float:
    """Return the seconds of the slowest stage."""
    return max(sum(costs[layer].seconds for layer in part) for part in stage_ranges(cut, len(costs)))


def best_cut(costs: Sequence[Cost], stages: int, most_bytes: float | None = None) -> list[int] | None:
    """Return the cut whose slowest stage is the fastest; None if every cut has a stage of more than `most_bytes`.

    Of equal ones, the one whose stages are the smallest from the last on.
    """
    layers = len(costs)
    seconds = [0.0, *accumulate(cost.seconds for cost in costs)]
    sizes = [0.0, *accumulate(cost.bytes for cost in costs)]
    # reach[k][n]: the slowest of k stages over the first n layers, and where the last of them starts
    reach: list[list[tuple[float, int] | None]] = [[None] * (layers + 1) for _ in range(stages + 1)]
    reach[0][0] = (0.0, 0)
    for count in range(1, stages + 1):
        for last in range(count, layers + 1):
            options = [
                (max(before[0], seconds[last] - seconds[first]), first)
                for first in range(count - 1, last)
                if (before := reach[count - 1][first]) is not None
                and (most_bytes is None or sizes[last] - sizes[first] <= most_bytes)
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


def check_layers(layers: int, stages: int) -> None:
    """Refuse more stages than layers."""
    if stages > layers:
        raise BadInput(
            f"{stages} stages need at least {stages} layers, and the model has {layers} that can be cut apart: use "
            f"--stages {layers} or fewer, or name smaller layers in Recipe(stages=...)"
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
