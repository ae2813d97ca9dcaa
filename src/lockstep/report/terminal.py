"""A comparison for a terminal: what to use, the table, where a step goes, why, and what to know.

Columns that do not fit the terminal are left out, the least telling first; the page has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lockstep.report.parity import FIRST, SAME
from lockstep.report.rows import PARTS, Row
from lockstep.report.units import NONE, digits, duration, rate, share, size, times

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lockstep.report.compare import Comparison

GAP = 2
"""Blanks between columns."""


@dataclass(frozen=True)
class Column:
    """One column of the terminal's table."""

    heading: str
    """As shown."""
    text: Callable[[Row], str]
    """What it says of a row."""
    rank: int
    """What goes first when there is no room: the highest."""

    def width(self, rows: Sequence[Row]) -> int:
        """Return how wide it has to be."""
        return max(len(line) for line in [*self.heading.splitlines(), *(self.text(row) for row in rows)])


def show(found: Comparison, screen: Console, *, per_rank: bool = False) -> None:
    """Print a comparison."""
    for line in lines(found, screen.width, per_rank=per_rank):
        screen.print(line)


def lines(found: Comparison, width: int, *, per_rank: bool = False) -> Iterator[RenderableType]:
    """Yield what to print, from the top."""
    for sentence in found.recommendation:
        yield Text(sentence, style="bold")
    yield table(found, width)
    ran = [row for row in found.rows if row.repeats]
    if any(row.parts for row in ran):
        yield step_table(ran)
    if per_rank:
        yield rank_table(ran)
    yield from _named("why", ((row.name, row.why) for row in ran))
    yield from _named("parity", ((row.name, row.parity) for row in ran if row.parity not in (SAME, FIRST)))
    yield from _named("note", ((row.name, note) for row in ran for note in row.notes))
    yield from _named("did not run", ((row.name, row.why_not) for row in found.rows if not row.repeats))


def table(found: Comparison, width: int) -> Table:
    """Return the table of a comparison, as wide as there is room."""
    rows = found.rows
    made = _plain(found.title)
    made.add_column("strategy", no_wrap=True)
    chosen = fitting(columns(rows), rows, width - max(len(row.name) for row in rows) - GAP - 1)
    for column in chosen:
        made.add_column(column.heading, justify="left" if column.heading == "parity" else "right", no_wrap=True)
    for row in rows:
        cells = [column.text(row) for column in chosen] if row.repeats else ["did not run", *[""] * (len(chosen) - 1)]
        made.add_row(escape(row.name), *(escape(cell) for cell in cells))
    if coupled := sorted({row.depends_on_workers for row in rows if row.depends_on_workers}):
        made.caption = f"* {', '.join(coupled)}: loss, accuracy and digest depend on the number of workers"
    return made


def fitting(every: Sequence[Column], rows: Sequence[Row], width: int) -> list[Column]:
    """Return the columns that fit into a width, in their order."""
    ran = [row for row in rows if row.repeats]
    chosen = [column for column in every if any(column.text(row) != NONE for row in ran)] or list(every[:1])
    while len(chosen) > 1 and sum(column.width(ran) + GAP for column in chosen) > width:
        chosen.remove(max(chosen, key=lambda column: column.rank))
    return chosen


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns after the name; a metric has one each."""
    measure = next((row.memory_measure for row in rows if row.memory_measure), "memory")
    metrics = dict.fromkeys(name for row in rows for name in row.metrics or {} if name != "loss")
    return [
        Column("workers", lambda row: str(row.workers), 1),
        Column("threads", lambda row: str(row.threads), 10),
        Column("batch:\nall / worker", _batch, 14),
        Column("time", lambda row: duration(row.seconds), 9),
        Column("step", _step, 0),
        Column("samples/s", lambda row: rate(row.samples_per_second), 6),
        Column("speed-up", lambda row: times(row.speed_up), 2),
        Column("over all\ncores", lambda row: times(row.speed_up_all_cores), 8),
        Column("effi-\nciency", lambda row: share(row.efficiency), 11),
        Column("start-up", lambda row: duration(row.start_seconds), 13),
        Column("compile", lambda row: duration(row.compile_seconds), 15),
        Column(f"{measure}\nlargest", lambda row: size(row.largest_memory or None), 4),
        Column(f"{measure}\nall", lambda row: size(row.total_memory or None), 7),
        Column("loss", lambda row: NONE if row.loss is None else f"{row.loss:.4f}", 5),
        *(Column(name, _metric(name), 5) for name in metrics),
        Column("parity", _parity, 3),
        Column("digest", lambda row: (row.digest[:8] or "varies") + ("*" if row.depends_on_workers else ""), 12),
    ]


def step_table(rows: Sequence[Row]) -> Table:
    """Return where a mean step goes: shares of it by part."""
    made = _plain("where a step goes")
    made.add_column("strategy", no_wrap=True)
    for heading in (*PARTS, "unaccounted", "sent", "exchange hidden", "slowest rank"):
        made.add_column(heading, justify="right")
    for row in rows:
        whole = sum(row.parts.values())
        cells = [share(row.parts[part] / whole) if whole else NONE for part in PARTS]
        sent = max((rank.sent for rank in row.ranks), default=0.0)
        cells += [share(row.unaccounted), size(sent) if sent else NONE, share(row.overlap)]
        made.add_row(escape(row.name), *cells, NONE if row.slowest_rank is None else str(row.slowest_rank))
    return made


def rank_table(rows: Sequence[Row]) -> Table:
    """Return a line for each rank of each way."""
    measure = next((row.memory_measure for row in rows if row.memory_measure), "memory")
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics or {} if name != "loss"))
    made = _plain("by rank")
    made.add_column("strategy", no_wrap=True)
    for heading in ("rank", "time", "step", "wait", measure, "loss", *metrics, "host"):
        made.add_column(heading, justify="right")
    for row in rows:
        for rank in row.ranks:
            made.add_row(
                escape(row.name),
                str(rank.rank),
                duration(rank.seconds),
                duration(rank.step_seconds),
                duration(rank.parts.get("wait") or None),
                size(rank.peak_memory or None),
                NONE if rank.loss is None else f"{rank.loss:.4f}",
                *(_metric(name)(row) for name in metrics),
                escape(rank.host),
            )
    return made


def _plain(title: str) -> Table:
    return Table(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE, padding=(0, 1, 0, 0))


def _named(what: str, entries: Iterator[tuple[str, str]]) -> Iterator[Text]:
    for name, text in entries:
        if text:
            yield Text.assemble((f"{what} ", "dim"), (f"{name}: ", "bold"), text)


def _batch(row: Row) -> str:
    if row.global_batch is None or row.batch_per_worker is None:
        return NONE
    return f"{row.global_batch} / {digits(row.batch_per_worker).removesuffix('.0').removesuffix('.00')}"


def _step(row: Row) -> str:
    if row.step_seconds is None or row.step_spread is None:
        return NONE
    low, high = row.step_spread
    return f"{duration(row.step_seconds)} ±{(high - low) / 2 / row.step_seconds:.0%}"


def _metric(name: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = (row.metrics or {}).get(name)
        return NONE if value is None else f"{value:.1%}" if name == "accuracy" else f"{value:.4f}"

    return text


def _parity(row: Row) -> str:
    return {SAME: SAME, FIRST: "first", "": NONE}.get(row.parity, row.parity.partition(" ")[0].rstrip(":"))
