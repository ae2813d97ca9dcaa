"""The tables say what the rows hold, and goals compare the right two."""

from __future__ import annotations

import io

from rich.console import Console

from lockstep.bench.collectives import DDP, MIB, Row, goals, readable, tables


def _row(way: str, seconds: float, *, size: int = 25 * MIB, workers: int = 2) -> Row:
    return Row(workers=workers, size=size, way=way, seconds=seconds, fastest=seconds)


ROWS = [
    _row("gloo", 0.024),
    _row("shm", 0.012),
    _row("shm in place", 0.003),
    _row("copy limit", 0.0025),
    _row("gloo", 0.0005, size=256),
    _row("shm", 0.00002, size=256),
    _row(DDP[0], 0.1, size=26_000_000),
    _row(DDP[1], 0.08, size=26_000_000),
]


def test_goals_compare_what_they_say() -> None:
    found = {goal.what: (round(goal.found, 2), goal.reached) for goal in goals(ROWS)}
    assert found == {
        "gloo / shm, 256 B, W = 2": (25.0, True),
        "gloo / shm, 25 MiB, W = 2": (2.0, False),
        "gloo / shm in place, 25 MiB, W = 2": (8.0, True),
        "shm in place / copy limit, 25 MiB, W = 2": (1.2, True),
        "torch DDP on shm / torch DDP on gloo, 24.8 MiB, W = 2": (0.8, True),
    }


def test_tables_show_every_figure() -> None:
    console = Console(file=io.StringIO(), width=160)
    for table in tables(ROWS):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("24.00 ms", "12.00 ms", "3.00 ms", "2.50 ms", "20 us", "missed", "reached", "0.80"):
        assert word in text


def test_sizes_read_well() -> None:
    assert [readable(n) for n in (256, 65536, 25 * MIB, 26_000_000)] == ["256 B", "64 KiB", "25 MiB", "24.8 MiB"]
