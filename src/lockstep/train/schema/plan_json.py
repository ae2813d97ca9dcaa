"""plan.json: a comparison as asked for, in the folder that holds its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from lockstep.train.schema.reading import read_document
from lockstep.train.schema.refusal import damaged
from lockstep.train.schema.run_json import wrong_count
from lockstep.train.schema.scalars import Document, LongerThanZero, Positive, Record
from lockstep.train.spec import RunSpec

NAME = "plan.json"


class Way(Record, frozen=True, kw_only=True):
    """One row to be."""

    name: str
    """The strategy, and what tells it from its neighbours."""
    spec: RunSpec
    """What to run."""

    def folder(self, repeat: int) -> str:
        """Return the name of a repeat's run folder; repeats count from 1."""
        return f"{self.name.replace(', ', '-').replace(' ', '-')}-{repeat}"


class ComparisonPlan(Document, frozen=True, kw_only=True):
    """Everything that was known before the first run."""

    title: str
    """What all ways train, as far as it is known before one has run."""
    command: str
    """As typed."""
    ways: Annotated[tuple[Way, ...], Meta(min_length=1)]
    """The rows."""
    repeats: Positive
    """How often each is run."""
    time_limit: LongerThanZero | None
    """Seconds after which no repeat is begun that would end later, counted anew when a comparison is resumed."""
    source: str
    """SHA-256 of the recipe's file; empty for a built-in recipe."""
    versions: dict[str, str | None]
    """Of what the bits and the times depend on."""


def read_comparison_plan(folder: Path) -> ComparisonPlan:
    """Read plan.json, or refuse it."""
    path = folder / NAME
    plan: ComparisonPlan = read_document(path, ComparisonPlan)
    for number, way in enumerate(plan.ways, start=1):
        if wrong := wrong_count(way.spec):
            raise damaged(str(path), f"ways, entry {number}, spec, {wrong}")
    return plan
