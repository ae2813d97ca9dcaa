"""How lanes go through the stages of a model that is cut: a row for each worker, and what it waits is the bubble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.bubbles import Bubble, bubble_of
from lockstep.report.charts.frame import NARROW, WIDE, Chart, Key, RowFrame
from lockstep.report.collect import FinishedRun, Span
from lockstep.report.compare import Comparison
from lockstep.report.lane_actions import LaneAction, lane_actions, stage_spans
from lockstep.report.theme import SHADES
from lockstep.report.units import duration, plural, share, time_unit
from lockstep.train.schema.scalars import PARTS

RANKS = 16
"""More workers of a way are not drawn; the trace file has all."""
FEW_LANES, STEPS = 4, 2
"""With no more lanes than this, so many steps are drawn; else one."""
ROW, BAR, LOWER = 24.0, 18.0, 6.0
"""Heights: of a worker's row, of a bar in it, and how much lower than a forward a backward stands."""
THIN, LINE = 6.0, 2.0
"""Heights: of what is not of a lane, and of waiting."""
LETTER = 7.0
"""Width of a digit in a bar."""
OTHERS = {"data": "data", "exchange": "exchange", "optimizer": "optimizer"}


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The steps of one way that are shown, from the beginning of the first."""

    name: str
    """Of the way."""
    bubble: Bubble | None
    """Of its run."""
    ranks: tuple[tuple[int, int], ...]
    """Rank and stage of each worker, by replica and stage."""
    steps: tuple[int, ...]
    """Which."""
    actions: tuple[LaneAction, ...]
    """Forward and backward of lanes."""
    others: tuple[Span, ...]
    """What the workers did or waited for beside them."""
    start: float
    """When the first of them began."""
    length: float
    """Seconds of all of them."""


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of lanes, if the first run of any way recorded lanes of a model that was cut."""
    firsts = {row.name: comparison.runs[row.name][0] for row in comparison.rows if comparison.runs.get(row.name)}
    acted = {name: lane_actions(run) for name, run in firsts.items()}
    most = max((len({one.lane for one in actions}) for actions in acted.values()), default=0)
    steps = STEPS if most <= FEW_LANES else 1
    made = [flow(name, firsts[name], actions, steps) for name, actions in acted.items()]
    flows = [one for one in made if one is not None]
    if not flows:
        return
    told = "; ".join(f"{one.name}: {one.bubble.in_words}" for one in flows if one.bubble)
    yield Chart(
        key="lane-flow",
        title="Lanes through the stages",
        help=f"{plural(steps, 'step')} of one run of each way whose model is cut, a row for each worker. Upper bars "
        "are the forward of a lane, lower bars its backward (a number with a stroke); between the first and the last "
        f"bar of a step, the thin line is the bubble. {told}.",
        words=_words(flows),
        wide=_draw(flows, WIDE),
        narrow=_draw(flows, NARROW),
        legend=_legend(),
        headings=("strategy", "stage", "rank", "step", "lanes", "forward", "backward", "passing on", "waiting"),
        lines=tuple(line for one in flows for line in _lines(one)),
    )


def flow(name: str, run: FinishedRun, actions: Sequence[LaneAction], count: int) -> Flow | None:
    """Choose the steps to show: those that follow each other and whose time is the one in the middle."""
    results = sorted(run.result.ranks, key=lambda rank: (rank.replica, rank.stage))[:RANKS]
    ranks = {rank.rank for rank in results}
    own = [one for one in actions if one.rank in ranks]
    if not own:
        return None
    steps = middle_steps(own, count)
    shown = tuple(one for one in own if one.step in steps)
    others = tuple(
        span
        for span in stage_spans(run)
        if span.step in steps and span.rank in ranks and (span.lane is None or span.name == "wait")
    )
    start = min([one.start for one in shown] + [span.start for span in others])
    end = max([one.end for one in shown] + [span.start + span.seconds for span in others])
    return Flow(
        name=name,
        bubble=bubble_of(run),
        ranks=tuple((rank.rank, rank.stage) for rank in results),
        steps=steps,
        actions=shown,
        others=others,
        start=start,
        length=end - start,
    )


def middle_steps(actions: Sequence[LaneAction], count: int) -> tuple[int, ...]:
    """Return so many steps that follow each other, fewer if there are none: of all choices the one of median length."""
    recorded = sorted({one.step for one in actions})
    choices = [steps for steps in zip(*(recorded[place:] for place in range(count)), strict=False) if _follow(steps)]
    choices = choices or [(step,) for step in recorded]

    def length(steps: tuple[int, ...]) -> float:
        own = [one for one in actions if one.step in steps]
        return max(one.end for one in own) - min(one.start for one in own)

    return sorted(choices, key=length)[(len(choices) - 1) // 2]


def _follow(steps: tuple[int, ...]) -> bool:
    return all(after == before + 1 for before, after in pairwise(steps))


def _words(flows: Sequence[Flow]) -> str:
    told = []
    for one in flows:
        stages = plural(len({stage for _, stage in one.ranks}), "stage")
        lanes = plural(len({action.lane for action in one.actions}), "lane")
        told.append(f"{one.name}: {lanes} on {stages}" + (f", {one.bubble.in_words}" if one.bubble else ""))
    return f"Timeline of forward and backward of each lane by worker. {'; '.join(told)}."


def _legend() -> tuple[Key, ...]:
    upper = svg.key(*(svg.block(place * 15.0, 0, 14, 10, f"p-forward-{place + 1}") for place in range(2)))
    lower = svg.key(*(svg.block(place * 15.0, 4, 14, 10, f"p-backward-{place + 1}") for place in range(2)))
    waits = svg.key(svg.block(0, 6, 29, LINE, "p-wait"))
    return (
        Key(colour="p-forward-1", label="forward of a lane, a shade each", picture=upper),
        Key(colour="p-backward-1", label="backward of a lane", picture=lower),
        Key(colour="p-wait", label="waiting (the bubble)", picture=waits),
        *(Key(colour=f"p-{part}", label=label) for part, label in OTHERS.items()),
    )


def _lines(one: Flow) -> list[tuple[str, ...]]:
    lines = []
    for rank, stage in one.ranks:
        for step in one.steps:
            own = [action for action in one.actions if (action.rank, action.step) == (rank, step)]
            waited = [span for span in one.others if (span.rank, span.step, span.name) == (rank, step, "wait")]
            both = (sum(action.seconds for action in own if action.forward == way) for way in (True, False))
            passed = sum(action.passing for action in own)
            times = (*both, passed, sum(span.seconds for span in waited))
            lanes = len({action.lane for action in own})
            lines.append((one.name, str(stage), str(rank), str(step), str(lanes), *map(duration, times)))
    return lines


def _draw(flows: Sequence[Flow], width: float) -> Markup:
    rows = [(one, rank, stage) for one in flows for rank, stage in one.ranks]
    labels = [(f"{one.name}, stage {stage}", f"rank {rank}{_waits(one, rank)}", ROW) for one, rank, stage in rows]
    frame = RowFrame(width, labels, right=16, largest=max(one.length for one in flows))
    unit, name = time_unit(frame.largest)
    parts = [frame.axis(unit, f"since the first of these steps began, {name}")]
    for place, (one, rank, _) in enumerate(rows):
        parts.append(frame.label(place))
        top = frame.tops[place]
        parts += [_other(span, one, frame, top) for span in one.others if span.rank == rank]
        parts += [_bar(action, one, frame, top) for action in one.actions if action.rank == rank]
    return svg.picture(width, frame.height, _words(flows), *parts)


def _waits(one: Flow, rank: int) -> str:
    """Say for how much of the time of its lanes a worker waits, in the steps that are shown."""
    whole = busy = 0.0
    for step in one.steps:
        every = [action for action in one.actions if action.step == step]
        whole += max(action.end for action in every) - min(action.start for action in every)
        busy += sum(action.end - action.start for action in every if action.rank == rank)
    return f", waits {share(max(0.0, 1.0 - busy / whole))}" if whole else ""


def _bar(action: LaneAction, one: Flow, frame: RowFrame, top: float) -> Markup:
    way = "forward" if action.forward else "backward"
    number = f"{action.lane}{'' if action.forward else chr(34) if action.weights else chr(39)}"
    passing = f", {duration(action.passing)} of it passing on" if action.passing else ""
    tip = (
        f"{one.name}, stage {action.stage}, step {action.step}: {way} of lane {action.lane}, "
        f"{duration(action.end - action.start)}{passing}"
    )
    x = frame.left + frame.length(action.start - one.start)
    width = frame.length(action.end - action.start)
    y = top if action.forward else top + LOWER
    # The gap of a pixel tells neighbours apart where their colours do not.
    bar = svg.block(x, y, width - (1 if width > 3 else 0), BAR, f"p-{way}-{action.lane % SHADES + 1}", tip)
    if width < LETTER * len(number) + 4:
        return bar
    return bar + svg.text(x + width / 2, y + BAR - 4.5, number, "small on", "middle")


def _other(span: Span, one: Flow, frame: RowFrame, top: float) -> Markup:
    name = "waiting" if span.name == "wait" else span.name
    whose = "" if span.lane is None else f" for lane {span.lane}"
    tip = f"{one.name}, rank {span.rank}, step {span.step}: {name}{whose}, {duration(span.seconds)}"
    height = LINE if span.name == "wait" else THIN
    kind = f"p-{span.name}" if span.name in PARTS else "p-wait"
    x = frame.left + frame.length(span.start - one.start)
    return svg.block(x, top + (ROW - height) / 2, frame.length(span.seconds), height, kind, tip)
