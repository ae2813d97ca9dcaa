"""What fits, the cheapest way, and the command to type."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from lockstep.fit.choosing import Candidate, advice, candidates, cheapest, command_of, limit_of
from lockstep.fit.fit_table import fit_table, why_not_lines
from lockstep.train.spec import RunSpec
from tests.unit.fit.values import FACTS, MIB, facts

SPEC = RunSpec(recipe="mlp")


def rows(memory: int | None, workers: list[int]) -> list[Candidate]:
    return candidates(FACTS, SPEC, workers, limit_of(FACTS, memory))


def chosen(memory: int, workers: list[int]) -> tuple[str, int] | None:
    best = cheapest(rows(memory, workers))
    return None if best is None else (best.spec.strategy, best.spec.workers)


def test_the_fewest_workers_and_then_the_fastest() -> None:
    assert chosen(4096 * MIB, [1, 2, 4]) == ("single", 1)
    assert chosen(4096 * MIB, [2, 4]) == ("single", 1)
    assert chosen(750 * MIB, [1, 2, 4]) == ("ddp", 2)
    assert chosen(560 * MIB, [1, 2, 4])[0] in ("pipeline", "layers")  # type: ignore[index]
    assert chosen(100 * MIB, [1, 2, 4]) is None


def test_every_strategy_has_its_rows() -> None:
    names = {(row.spec.strategy, row.spec.workers) for row in rows(None, [1, 2, 4])}
    assert ("single", 1) in names
    assert {("ddp", 2), ("ddp", 4), ("dp", 2), ("layers", 2), ("pipeline", 4), ("torch-ddp", 2)} <= names
    assert not {("ddp", 1), ("single", 2), ("layers", 1)} & names


def test_without_a_limit_the_workers_of_a_host_share_what_is_free() -> None:
    needs = {(row.spec.strategy, row.spec.workers): row for row in rows(None, [2])}
    ddp = needs["ddp", 2]
    assert ddp.need is not None
    tight = facts(free=ddp.need.host - 1)
    assert not next(
        row for row in candidates(tight, SPEC, [2], limit_of(tight, None)) if row.spec.strategy == "ddp"
    ).fits
    enough = facts(free=ddp.need.host)
    assert next(row for row in candidates(enough, SPEC, [2], limit_of(enough, None)) if row.spec.strategy == "ddp").fits


def test_a_row_that_cannot_be_says_why() -> None:
    every = candidates(facts(layers=(), uncut="it is no chain"), SPEC, [3, 16], limit_of(FACTS, None))
    why = {(row.spec.strategy, row.spec.workers): row.why_not for row in every}
    assert why["layers", 3] == "it is no chain"
    assert "lanes=8 cannot be cut over 16 workers" in why["ddp", 16]


def test_a_long_reason_stands_below_the_table_and_once() -> None:
    """In a cell, a few words wide, it made the table longer than a screen."""
    why = "it is no chain of layers: " + "name them in the recipe, " * 12
    every = candidates(facts(layers=(), uncut=why), SPEC, [2, 4], limit_of(FACTS, None))
    console = Console(width=160, file=StringIO(), record=True)
    console.print(fit_table(every, FACTS, limit_of(FACTS, None)))
    shown = console.export_text()
    assert "cannot be" in shown
    assert "no chain" not in shown
    assert len(shown.splitlines()) == len(every) + 5, "a line for each way, and the frame"
    ways = "layers, 2; layers, 4; pipeline, 2; pipeline, 4; torch-pipeline, 2; torch-pipeline, 4"
    assert f"cannot be {ways}: {why}" in why_not_lines(every)


def test_the_command() -> None:
    spec = RunSpec(recipe="/a/my recipe.py", strategy="ddp", workers=2, drop_last=True, global_batch=64, measure=False)
    typed = ["recipe", "drop_last", "global_batch", "measure", "backend"]
    assert command_of(Candidate(spec=spec), typed, 8, Path("/a")) == (
        "lockstep run 'my recipe.py' --strategy ddp --workers 2 --lanes 8 --no-measure --global-batch 64 --drop-last"
    )


def test_what_to_try_where_nothing_fits() -> None:
    said = advice(rows(100 * MIB, [1, 2, 4]), FACTS, limit_of(FACTS, 100 * MIB))
    assert said.startswith("nothing fits in 100MiB: ")
    alone = advice(rows(100 * MIB, [1]), FACTS, limit_of(FACTS, 100 * MIB))
    assert "single on 1 worker needs the least" in alone
    assert "--lanes 16" in said
