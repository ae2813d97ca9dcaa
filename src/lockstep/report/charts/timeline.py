"""What each rank did in a few steps, side by side in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts.frame import NARROW, WIDE, Chart, RowFrame
from lockstep.report.charts.parts import LABELS, LEGEND
from lockstep.report.collect import Span, spans
from lockstep.report.compare import Comparison
from lockstep.report.units import duration, plural, time_unit
from lockstep.train.schema.scalars import PARTS

STEPS = 3
RANKS = 16
"""More ranks are not drawn; the trace file has all."""
LANE, WAY = 14.0, 18.0


@dataclass(frozen=True)
class Strip:
    """The steps of one way, from the beginning of the first that is shown."""

    name: str
    spans: tuple[Span, ...]
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    start: float
    length: float


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the timeline of the first run of each row that recorded one."""
    rows, runs = comparison.rows, comparison.runs
    strips = [cut_out(row.name, spans(runs[row.name][0])) for row in rows if runs.get(row.name)]
    shown = [one for one in strips if one is not None]
    if not shown:
        return
    yield Chart(
        key="timeline",
        title="Ranks in time",
        help=f"At most {plural(STEPS, 'step')} of one run of each way, a strip for each rank, all on one scale. "
        "trace.json has every recorded step; open it at ui.perfetto.dev.",
        words=_words(shown),
        wide=_draw(shown, WIDE),
        narrow=_draw(shown, NARROW),
        legend=LEGEND,
        headings=("strategy", "rank", "step", "starts at", *(LABELS[part] for part in PARTS)),
        lines=tuple(line for one in shown for line in _lines(one)),
    )


def cut_out(name: str, spans: Sequence[Span]) -> Strip | None:
    """Choose the steps to show: the last ones that follow each other, so that warm-up is not among them."""
    if not spans:
        return None
    last = max(span.step for span in spans)
    recorded = {span.step for span in spans}
    steps = [last]
    while len(steps) < STEPS and steps[0] - 1 in recorded:
        steps.insert(0, steps[0] - 1)
    ranks = sorted({span.rank for span in spans})[:RANKS]
    own = tuple(span for span in spans if span.step in steps and span.rank in ranks)
    start = min(span.start for span in own)
    end = max(span.start + span.seconds for span in own)
    return Strip(name, own, tuple(ranks), tuple(steps), start, end - start)


def _words(strips: Sequence[Strip]) -> str:
    told = [
        f"{strip.name}: {plural(len(strip.steps), 'step')} on {plural(len(strip.ranks), 'rank')} "
        f"in {duration(strip.length)}"
        for strip in strips
    ]
    return f"Timeline of the parts of a few steps by rank. {'; '.join(told)}."


def _lines(strip: Strip) -> list[tuple[str, ...]]:
    lines = []
    for rank in strip.ranks:
        for step in strip.steps:
            own = [span for span in strip.spans if span.rank == rank and span.step == step]
            if own:
                sums = [sum(span.seconds for span in own if span.name == part) for part in PARTS]
                start = duration(min(span.start for span in own) - strip.start)
                lines.append((strip.name, str(rank), str(step), start, *map(duration, sums)))
    return lines


def _draw(strips: Sequence[Strip], width: float) -> Markup:
    heights = [max(26.0, WAY * len(strip.ranks)) for strip in strips]
    labels = [(strip.name, _steps_shown(strip), height) for strip, height in zip(strips, heights, strict=True)]
    frame = RowFrame(width, labels, right=16, largest=max(strip.length for strip in strips))
    unit, name = time_unit(frame.largest)
    parts = [frame.axis(unit, f"since the first of these steps began, {name}")]
    for place, strip in enumerate(strips):
        parts.append(frame.label(place))
        for line, rank in enumerate(strip.ranks):
            top = frame.tops[place] + (heights[place] - WAY * len(strip.ranks)) / 2 + line * WAY + 2
            own = [span for span in strip.spans if span.rank == rank]
            parts += [_block(span, strip, frame, top) for span in own]
    return svg.picture(width, frame.height, _words(strips), *parts)


def _steps_shown(strip: Strip) -> str:
    first, last = strip.steps[0], strip.steps[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _block(span: Span, strip: Strip, frame: RowFrame, top: float) -> Markup:
    label = LABELS.get(span.name, span.name)
    tip = f"{strip.name}, rank {span.rank}, step {span.step}, {label}: {duration(span.seconds)}"
    kind = f"p-{span.name}" if span.name in PARTS else "p-wait"
    start, length = frame.length(span.start - strip.start), frame.length(span.seconds)
    return svg.block(frame.left + start, top, length, LANE, kind, tip)
