"""A few hundred cases of every kind, always the same; `scripts/soak-fuzz` runs as many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.kinds import KINDS

CASES = {"report": 300, "checkpoint": 300, "resume": 200, "ragged": 400, "environment": 600, "profile": 600}


@pytest.mark.parametrize("name", KINDS)
def test_every_case_succeeds_or_is_refused_on_one_line(name: str, tmp_path: Path) -> None:
    fuzzed = KINDS[name](tmp_path / name)
    refused = 0
    for seed in range(CASES[name]):
        try:
            refused += bool(fuzzed.case(seed))
        except Exception as error:
            raise AssertionError(f"{name} {seed}: {type(error).__name__}: {error}") from error
    assert 0 < refused < CASES[name], "some changes are harmless, and some are not"
