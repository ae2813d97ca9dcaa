"""Numbers and text of a run folder with their ranges, and the bases of all its types."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from lockstep.strategies.clock import PARTS as PARTS
from lockstep.strategies.clock import Part as Part

SCHEMA = 12
"""The version of all files of a run folder, see [Note: schema version]."""

TINY = 1e-6
"""Differences of clocks round to a little less than nothing."""
DIGEST = "^[0-9a-f]{64}$"
HASH = "^[0-9a-f]{16}$"

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
MOST_WORKERS = 2**20
"""Of workers, threads and processors: more than any machine has."""
Workers = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]
Rank = Annotated[int, Meta(ge=0, lt=MOST_WORKERS)]
Seconds = Annotated[float, Meta(ge=-TINY, le=1e10)]
Offset = Annotated[float, Meta(ge=-1e10, le=1e10)]
"""Seconds after something, or before it."""
LongerThanZero = Annotated[float, Meta(gt=0.0, le=1e10)]
Time = Annotated[float, Meta(ge=0.0, le=1e11)]
"""Seconds since the epoch."""
Rate = Annotated[float, Meta(ge=0.0, le=1e18)]
Weight = Annotated[float, Meta(ge=0.0, le=1e18)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Digest = Annotated[str, Meta(pattern=DIGEST)]
Hash = Annotated[str, Meta(pattern=HASH)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Any object of a run folder."""


class Document(Record, frozen=True, kw_only=True):
    """A file that is one JSON object."""

    schema: int = SCHEMA
    """The version of the schema."""
