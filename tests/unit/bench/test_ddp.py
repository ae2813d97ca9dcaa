"""The tables of `lockstep bench ddp`, from made-up rows."""

from __future__ import annotations

import io

from rich.console import Console

from lockstep.bench.ddp import BASE, IN_ROUNDS, IN_TURN, MANY, TREE, Row, goal_table, goals, table


def row(way: str, *samples: float, workers: int = 2) -> Row:
    return Row(model="mlp", workers=workers, way=way, samples=samples)


def test_ratios_with_a_goal() -> None:
    rows = [
        row(BASE, 0.3, 0.1, 0.1),
        row("drop-in, gloo", 0.09),
        row("lockstep ddp", 0.05),
        row(TREE, 0.02, 0.06, 0.05),
        row(IN_TURN, 0.01, 0.06, 0.04),
        row(IN_ROUNDS, 0.05),
        row(IN_ROUNDS, 0.06, workers=MANY),
    ]
    found = {goal.what: (round(goal.ratio, 6), goal.goal) for goal in goals(rows)}
    assert found == {
        "mlp: strategy ddp / torch DDP on gloo": (0.5, 0.55),
        "mlp: drop-in / torch DDP, both on gloo": (0.9, 1.0),
        "mlp: strategy ddp, exact / inexact, 4 lanes a worker, in the arena": (1.25, 1.03),
        "mlp: strategy ddp on 8 workers / on 2, same batch and lanes": (1.2, 1.4),
    }


def test_tables_can_be_printed() -> None:
    rows = [row(BASE, 0.1), row("lockstep ddp", 0.05), row(IN_ROUNDS, 0.05), row(IN_ROUNDS, 0.06, workers=MANY)]
    console = Console(width=140, file=io.StringIO())
    console.print(table(rows), goal_table(goals(rows)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.50" in text
    assert "1.40" in text
