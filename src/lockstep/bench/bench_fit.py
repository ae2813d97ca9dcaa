"""`lockstep bench fit`: what `lockstep fit` predicts of a worker's memory, beside the peak of a real run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lockstep import registry
from lockstep.bench.contract import (
    Benchmark,
    BenchOption,
    BenchSettings,
    Cell,
    Figure,
    Measurements,
    Quantity,
    Side,
    Table,
    TableColumn,
    Tell,
    Unit,
    at_least,
    at_most,
    figure,
    median,
    repeats,
)
from lockstep.bench.ranks.rank import THREADS
from lockstep.errors import BadInput, LockstepError
from lockstep.fit.apart import measured_apart
from lockstep.fit.formulas import WHOLE_MODEL
from lockstep.fit.lane_facts import LaneFacts
from lockstep.fit.predicting import predict
from lockstep.fit.stage_formulas import STAGED
from lockstep.launch.start import start_run
from lockstep.train.schema.result_json import Done, read_result
from lockstep.train.spec import RunSpec

RECIPES = ("mlp", "cifar100", "bytes")
HIGHEST, LOWEST = 1.1, 0.9
COLUMNS = (
    TableColumn(name="recipe"),
    TableColumn(name="strategy"),
    TableColumn(name="workers"),
    TableColumn(name="predicted", unit=Unit.BYTES),
    TableColumn(name="measured", unit=Unit.BYTES, spread="least to most"),
    TableColumn(name="predicted / measured", unit=Unit.RATIO),
    TableColumn(name="without base", unit=Unit.RATIO),
)


class PredictedRun(NamedTuple):
    """One strategy on one recipe: the prediction, and the peaks of the runs."""

    recipe: str
    strategy: str
    workers: int
    predicted: int
    base: int
    """The part of the prediction that is the interpreter and torch."""
    measured: Quantity

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured.value

    @property
    def row(self) -> dict[str, Cell]:
        """As a row of the table."""
        beyond = max(self.measured.value - self.base, 1.0)
        return {
            "recipe": self.recipe,
            "strategy": self.strategy,
            "workers": self.workers,
            "predicted": Quantity(value=float(self.predicted)),
            "measured": self.measured,
            "predicted / measured": Quantity(value=self.ratio),
            "without base": Quantity(value=(self.predicted - self.base) / beyond),
        }


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Measure a lane of each recipe, then train it every way for a few steps."""
    every: list[PredictedRun] = []
    notes: list[str] = []
    figures: list[Figure] = []
    for recipe in settings[RECIPE]:
        tell(f"{recipe}: a lane")
        spec = RunSpec(recipe=recipe, launcher="spawn", threads=THREADS, steps=settings[STEPS], progress=False)
        facts = _facts(spec)
        own = []
        for strategy in settings[STRATEGIES]:
            tell(f"{recipe}: {strategy}")
            workers = registry.describe(strategy).workers(settings[WORKERS])
            asked = replace(spec, strategy=strategy, workers=workers, lanes=facts.lanes)
            try:
                need = predict(facts, asked)
                peaks = [_peak(asked) for _ in range(settings[REPEATS])]
            except BadInput as error:
                notes.append(f"{recipe}, {strategy}: {error}")
                continue
            own.append(PredictedRun(recipe, strategy, workers, need.total, need.base, median(peaks)))
        every += own
        figures += _figures(recipe, own)
    title = f"peak memory of the largest worker after {settings[STEPS]} steps and an evaluation"
    table = Table(name="peaks", title=title, columns=COLUMNS, rows=tuple(one.row for one in every))
    return Measurements(tables=(table,), figures=tuple(figures), notes=tuple(notes))


def _facts(spec: RunSpec) -> LaneFacts:
    """Measure a lane; the recipes are built in, so what fails is not what was typed."""
    try:
        return measured_apart(spec)
    except BadInput as error:
        raise LockstepError(str(error)) from error


def _peak(spec: RunSpec) -> float:
    """Train in a folder that is removed, and return the largest worker's peak."""
    with tempfile.TemporaryDirectory() as folder:
        result = read_result(start_run(spec, Path(folder) / "run"))
    assert isinstance(result, Done)  # a run that fails is raised
    return float(max(result.peak_memory))


def _figures(recipe: str, runs: Sequence[PredictedRun]) -> list[Figure]:
    """Return the highest and the lowest prediction of a recipe: all others are between them."""
    if not runs:
        return []
    highest, lowest = max(runs, key=lambda one: one.ratio), min(runs, key=lambda one: one.ratio)
    predicted, measured = ([_side(name, one) for one in (highest, lowest)] for name in ("predicted", "measured"))
    return [
        figure(
            f"{recipe}: predicted / measured, highest ({highest.strategy})",
            predicted[0],
            measured[0],
            at_most(HIGHEST),
        ),
        figure(
            f"{recipe}: predicted / measured, lowest ({lowest.strategy})", measured[1], predicted[1], at_least(LOWEST)
        ),
    ]


def _side(name: str, one: PredictedRun) -> Side:
    value = Quantity(value=float(one.predicted)) if name == "predicted" else one.measured
    return Side(name=name, unit=Unit.BYTES, measured=value)


NAMES = tuple(name for name in (*WHOLE_MODEL, *STAGED) if name in registry.STRATEGIES)
RECIPE = BenchOption(name="recipes", help="Which recipes.", default=RECIPES, quick=("mlp",), choices=RECIPES)
STRATEGIES = BenchOption(
    name="strategies", help="Which ways to train.", default=NAMES, quick=("single", "ddp"), choices=NAMES
)
WORKERS = BenchOption(name="workers", help="How many workers.", default=2, quick=2)
STEPS = BenchOption(name="steps", help="Steps of each run.", default=3, quick=2)
REPEATS = repeats(1, what="How often each way is run; the median counts.")
BENCHMARK = Benchmark(
    name="fit",
    help="Memory of the largest worker as `lockstep fit` predicts it, beside the peak of a real run",
    options=(RECIPE, STRATEGIES, WORKERS, STEPS, REPEATS),
    run=run,
)
