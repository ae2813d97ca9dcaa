"""Folders of comparisons, for every report."""

from __future__ import annotations

import io
import random
from functools import partial
from pathlib import Path

from rich.console import Console

from lockstep.report.files import json_text, write_all
from lockstep.report.gather import gather
from lockstep.report.tensorboard import scalars
from lockstep.report.terminal import show
from lockstep.train.records import Lines, write_document
from lockstep.train.schema.plan_json import ComparisonPlan, Way
from tests.fuzz.kind import OneFile
from tests.fuzz.mutators import change_json
from tests.unit.report.causes import fingerprints
from tests.unit.report.folders import make_run
from tests.unit.report.values import setup

FILES = ("run.json", "result.json", "rank-0.jsonl", "fingerprints.jsonl")
PAGES = 1 / 16
"""The share of cases in which a page is made."""


class Report(OneFile):
    """Every report of a comparison of two ways, one of two ranks, with a plan, fingerprints and an earlier report."""

    name = "report"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.all, self.out = folder / "all", folder / "out"
        self.out.mkdir(parents=True)
        make_comparison(self.all)

    def read(self, chance: random.Random) -> None:
        run = chance.choice(("single-1", "torch-ddp-1", "."))
        name = chance.choice(("plan.json", "comparison.json") if run == "." else FILES)
        change = partial(change_json, chance=chance, lines=name.endswith(".jsonl"))
        self.change(self.all / run / name, chance, change, partial(self.report, chance.random()))

    def report(self, share: float) -> None:
        """Make what `lockstep report` makes; the page and the tables, which take long, in a share of the cases."""
        comparison = gather([self.all])
        json_text(comparison.as_json())
        if share < PAGES:
            write_all(comparison, self.out)
        if share < 2 * PAGES:
            show(comparison, Console(file=io.StringIO(), width=100), per_rank=True)
        for runs in comparison.runs.values():
            for run in runs:
                list(scalars(run))


def make_comparison(folder: Path) -> None:
    """Write a good comparison folder."""
    ways = []
    for name, workers in (("single", 1), ("torch-ddp", 2)):
        run = make_run(folder / f"{name}-1", strategy=name, workers=workers, state=name)
        lines = Lines(run / "fingerprints.jsonl")
        for step in (0, 1, 5):
            lines.write(fingerprints(step, buffers={"norm.running_mean": 1.0}, weight=1.0 + step * workers))
        lines.close()
        ways.append(Way(name=name, spec=setup(name, workers).spec))
    plan = ComparisonPlan(
        title="t", command="c", ways=tuple(ways), repeats=1, time_limit=None, source="", versions={"torch": "2.13.0"}
    )
    write_document(folder / "plan.json", plan)
    write_all(gather([folder]), folder)
