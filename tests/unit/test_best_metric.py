"""Which value is the best so far, and for how long nothing was better."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import msgspec
import pytest

from lockstep.errors import BadInput
from lockstep.train.best_metric import BestMetric, check_metric, wanted_metric


@pytest.mark.parametrize(
    ("text", "metric", "lowest"),
    [
        ("accuracy", "accuracy", False),
        ("loss", "loss", True),
        ("validation/loss", "validation/loss", True),
        ("eval_RMSE", "eval_RMSE", True),
        ("glossary", "glossary", False),
        ("loss:max", "loss", False),
        ("bleu:min", "bleu", True),
        ("top:5", "top:5", False),
    ],
)
def test_the_name_tells_what_is_better(text: str, metric: str, lowest: bool) -> None:
    wanted = wanted_metric(text)
    assert (wanted.metric, wanted.lowest) == (metric, lowest)


def test_the_best_is_kept_and_others_are_counted() -> None:
    best = wanted_metric("accuracy")
    seen = []
    for step, value in enumerate([math.nan, 0.2, 0.5, 0.5, math.inf, 0.4, 0.6], start=1):
        best = best.after(value, step)
        seen.append((best.value, best.steps, best.stale))
    assert seen == [(None, 0, 1), (0.2, 2, 0), (0.5, 3, 0), (0.5, 3, 1), (0.5, 3, 2), (0.5, 3, 3), (0.6, 7, 0)]


def test_lower_is_better_for_a_loss() -> None:
    best = wanted_metric("loss").after(2.0, 1).after(1.0, 2).after(1.5, 3)
    assert (best.value, best.steps, best.stale) == (1.0, 2, 1)


def test_a_metric_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadInput, match=r"--keep-best acuracy: the recipe's evaluate returns accuracy, loss.*accuracy"):
        check_metric(wanted_metric("acuracy"), ["accuracy", "loss"])
    with pytest.raises(BadInput, match="--keep-best is empty"):
        wanted_metric(" ")


def test_it_survives_a_checkpoint() -> None:
    best = wanted_metric("loss").after(0.1 + 0.2, 5).after(1.0, 6)
    assert msgspec.convert(asdict(best), BestMetric) == best


@pytest.mark.parametrize("change", [{"steps": -1}, {"stale": "2"}, {"value": "low"}, {"metric": 3}])
def test_anything_else_in_a_checkpoint_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**asdict(BestMetric(metric="loss", lowest=True)), **change}, BestMetric)
