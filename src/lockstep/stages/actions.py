"""Which lane a stage computes when: forward and backward of every lane, in a fixed order (pure).

All orders are one: so many lanes go forward first, then backward and forward alternate, then the rest goes backward.
They differ in how many go first. Backward is always in the order of the lanes, as the tree needs it.

    one-lane     none: a lane goes through all stages and back before the next one starts (`layers`)
    1f1b         as many as there are stages behind: each stage holds no more lanes than it must (`pipeline`)
    zero-bubble  three times as many, so that a stage need not wait before its first backward; and the last lanes go
                 backward in two halves: what the stage before waits for goes first, and the gradients of the weights
                 follow at the end, when this stage would wait, in this step or for the next one's first lane. With
                 few lanes, as 1f1b with all lanes in halves, the second as many lanes later as there are stages before
    fill-drain   all: the simplest pipeline, which holds every lane's activations at once

Two stages and four lanes, `1f1b`: 3 is the forward of lane 3, 3' its backward.

    stage 0  0  1  .  0' 2  1' 3  2' .  3'
    stage 1  .  0  0' 1  1' 2  2' 3  3' .

The same, `zero-bubble`: 3" is the half of its backward that is for the weights.

    stage 0  0  1  .  0' 0" 2  1' 1" 3  2' 2" 3' 3"
    stage 1  .  0  0' 1  1' 0" 2  2' 1" 3  3' 2" 3"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lockstep.errors import BadInput, nearest

ONE_LANE, ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE, FILL_DRAIN = "one-lane", "1f1b", "zero-bubble", "fill-drain"
ORDERS = (ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE, FILL_DRAIN)
"""Those that a pipeline can be asked for; the first is the default."""
MANY = 5
"""For two stages: with so many lanes, `zero-bubble` is shortest with few halves and many lanes ahead."""


class Action(NamedTuple):
    """One lane's forward or backward on one stage."""

    lane: int
    """Its position among the lanes of a replica."""
    forward: bool
    weights: bool = False
    """Of a backward in two halves: the second, for the gradients of the weights."""

    def __str__(self) -> str:
        return f"{'F' if self.forward else 'W' if self.weights else 'B'}{self.lane}"


def check_order(name: str) -> None:
    """Refuse an order that there is not."""
    if name not in ORDERS:
        raise BadInput(
            f"--pipeline-schedule is {', '.join(ORDERS[:-1])} or {ORDERS[-1]}: there is none called {name!r}"
            f"{nearest(name, list(ORDERS))}"
        )


def lane_order(strategy: str, asked: str) -> str:
    """Return the order of a strategy's lanes: a pipeline's is asked for; torch's has none with backward in halves."""
    if strategy == "layers":
        return ONE_LANE
    return ONE_FORWARD_ONE_BACKWARD if strategy == "torch-pipeline" and asked == ZERO_BUBBLE else asked


def stage_actions(order: str, stages: int, stage: int, lanes: int) -> list[Action]:
    """Return what one stage does in a step, in order."""
    behind = stages - stage - 1
    many = order == ZERO_BUBBLE and 2 * lanes >= MANY * stages
    ahead = {ONE_LANE: 0, FILL_DRAIN: lanes}.get(order, 3 * behind if many else behind)
    ahead = min(ahead, lanes)
    actions = [Action(lane, True) for lane in range(ahead)]
    for lane in range(ahead, lanes):
        actions += [Action(lane, True), Action(lane - ahead, False)]
    actions += [Action(lane, False) for lane in range(lanes - ahead, lanes)]
    if order != ZERO_BUBBLE:
        return actions
    if not many:
        return _all_in_halves(actions, stage, lanes)
    halves = min(lanes, 2 * (stages - 1) + stage) if stage else 0  # nobody waits for what the first one computes
    return actions + [Action(lane, False, True) for lane in range(lanes - halves, lanes)]


def _all_in_halves(actions: Sequence[Action], later: int, lanes: int) -> list[Action]:
    """Return actions with the second half of each backward so many lanes later."""
    halves: list[Action] = []
    for action in actions:
        halves.append(action)
        if not action.forward and action.lane >= later:
            halves.append(Action(action.lane - later, False, True))
    return halves + [Action(lane, False, True) for lane in range(max(0, lanes - later), lanes)]


def in_halves(actions: Sequence[Action]) -> set[int]:
    """Return the lanes whose backward is in halves."""
    return {action.lane for action in actions if action.weights}


def most_in_flight(actions: Sequence[Action]) -> int:
    """Return how many lanes' activations a stage holds at once."""
    halves = in_halves(actions)
    held = most = 0
    for action in actions:
        held += 1 if action.forward else -1 if action.weights == (action.lane in halves) else 0
        most = max(most, held)
    return most


def bubble(order: str, stages: int, lanes: int) -> float:
    """Return the share of a step for which a stage has nothing to do, if all stages take equally long.

    With backward in halves it depends on how long each takes: here as long as forward.
    """
    if order == ONE_LANE:
        return 1.0 - 1.0 / stages
    if order == ZERO_BUBBLE:
        return uneven_bubble(order, [(1.0, 2.0)] * stages, lanes)
    return (stages - 1) / (lanes + stages - 1)


def uneven_bubble(order: str, seconds: Sequence[tuple[float, float]], lanes: int) -> float:
    """Return the bubble of stages that take so long for a lane's forward and backward, if passing on takes no time.

    The halves of a backward are taken to be equally long.
    """
    stages = len(seconds)
    queues = [stage_actions(order, stages, stage, lanes)[::-1] for stage in range(stages)]
    halves = list(map(in_halves, queues))
    ended: dict[tuple[int, Action], float] = {}
    free = [0.0] * stages
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue and (ready := _ready_at(queue[-1], stage, stages, ended)) is not None:
                action = queue.pop()
                forward, backward = seconds[stage]
                part = 0.5 if action.lane in halves[stage] else 1.0
                free[stage] = max(free[stage], ready) + (forward if action.forward else part * backward)
                ended[stage, action] = free[stage]
    whole, busy = stages * max(free), lanes * sum(forward + backward for forward, backward in seconds)
    return max(0.0, 1.0 - busy / whole) if whole else 0.0


def _ready_at(action: Action, stage: int, stages: int, ended: dict[tuple[int, Action], float]) -> float | None:
    """Return when what an action needs comes from its neighbour; None if the neighbour has not done it yet."""
    source = _source(action, stage)
    return ended.get((source, action)) if 0 <= source < stages and not action.weights else 0.0


def _source(action: Action, stage: int) -> int:
    """Return the stage that an action waits for."""
    return stage - 1 if action.forward else stage + 1


def timetable(order: str, stages: int, lanes: int) -> list[list[Action | None]]:
    """Return each stage's actions by tick; None: it waits.

    A forward takes one tick and so does a backward, but two where others are in halves, which take one each.
    """
    queues = [stage_actions(order, stages, stage, lanes) for stage in range(stages)]
    halves = list(map(in_halves, queues))
    whole = 2 if any(halves) else 1
    rows: list[list[Action | None]] = [[] for _ in queues]
    done: dict[tuple[int, Action], int] = {}
    positions = [0] * stages
    while any(position < len(queue) for position, queue in zip(positions, queues, strict=True)):
        tick = min(len(row) for row, at, queue in zip(rows, positions, queues, strict=True) if at < len(queue))
        for stage, (queue, row) in enumerate(zip(queues, rows, strict=True)):
            if positions[stage] == len(queue) or len(row) > tick:
                continue
            action = queue[positions[stage]]
            if _ready(action, stage, stages, done, tick):
                length = 1 if action.forward or action.lane in halves[stage] else whole
                row.extend([action] * length)
                done[stage, action] = tick + length
                positions[stage] += 1
            else:
                row.append(None)
    longest = max(len(row) for row in rows)
    return [row + [None] * (longest - len(row)) for row in rows]


def _ready(action: Action, stage: int, stages: int, done: dict[tuple[int, Action], int], tick: int) -> bool:
    """Say whether what an action needs has come from its neighbour before this tick."""
    source = _source(action, stage)
    if action.weights or not 0 <= source < stages:
        return True
    return done.get((source, action), tick + 1) <= tick


def draw(order: str, stages: int, lanes: int) -> str:
    """Return the timetable as text: a row per stage, `3` for the forward of lane 3, `3'` for its backward.

    Where backward is in halves, `3"` is the one for the weights.
    """
    rows = timetable(order, stages, lanes)
    width = max(2, len(str(lanes - 1)) + 1)

    def cell(action: Action | None) -> str:
        if action is None:
            return ".".ljust(width)
        return f"{action.lane}{'' if action.forward else chr(34) if action.weights else chr(39)}".ljust(width)

    return "\n".join(f"stage {stage}  {' '.join(map(cell, row)).rstrip()}" for stage, row in enumerate(rows))
