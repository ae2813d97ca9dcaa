"""The tables of `lockstep bench ddp`, from made-up rows."""

from __future__ import annotations

import io

from rich.console import Console

from lockstep.bench.ddp import BASE, DROP_IN, IN_ROUNDS, IN_TURN, MANY, TREE, Row, goal_table, goals, in_pair, table


def row(way: str, *samples: float, workers: int = 2, starts: int = 1) -> Row:
    return Row(model="mlp", workers=workers, way=way, samples=samples, starts=starts)


def test_ratios_with_a_goal() -> None:
    rows = [
        row(BASE, 0.3, 0.1, 0.1),
        row(DROP_IN, 0.01),
        row(in_pair(BASE), 0.3, 0.1, 0.1),
        row(in_pair(DROP_IN), 0.09),
        row("lockstep ddp", 0.05),
        row(in_pair(TREE), 0.02, 0.04, 0.06, 0.06, 0.05, 0.05, starts=3),
        row(in_pair(IN_TURN), 0.03, 0.03, 0.02, 0.02, 0.04, 0.04, starts=3),
        row(IN_ROUNDS, 0.05),
        row(IN_ROUNDS, 0.06, workers=MANY),
    ]
    made = goals(rows)
    found = {goal.what: (round(goal.ratio, 6), goal.goal) for goal in made}
    assert found == {
        "mlp: strategy ddp / torch DDP on gloo": (0.5, 0.55),
        "mlp: drop-in / torch DDP, both on gloo": (0.9, 1.0),
        "mlp: strategy ddp, exact / inexact, 4 lanes a worker, in the arena": (1.25, 1.03),
        "mlp: strategy ddp on 8 workers / on 2, same batch and lanes": (1.2, 1.4),
    }
    spreads = {goal.what: goal.spread for goal in made}
    assert spreads["mlp: strategy ddp, exact / inexact, 4 lanes a worker, in the arena"] == (1.0, 3.0)


def test_tables_can_be_printed() -> None:
    rows = [row(BASE, 0.1), row("lockstep ddp", 0.05), row(IN_ROUNDS, 0.05), row(IN_ROUNDS, 0.06, workers=MANY)]
    console = Console(width=140, file=io.StringIO())
    console.print(table(rows), goal_table(goals(rows)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.50" in text
    assert "1.40" in text
