"""Sizes of memory as they are typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.byte_sizes import MOST, read_bytes, write_bytes
from lockstep.errors import BadInput


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GiB", 2 << 30),
        ("2 gib", 2 << 30),
        ("512MiB", 512 << 20),
        ("1.5GB", 1_500_000_000),
        ("4G", 4 << 30),
        ("1000", 1000),
        ("1kb", 1000),
    ],
)
def test_read(text: str, count: int) -> None:
    assert read_bytes(text, "--memory") == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2Gigs", "there is no unit 'Gigs'"),
        ("2MiBs", "did you mean 'MiB'?"),
        ("lots", "--memory 'lots' is not a size: give a number with a unit, e.g. --memory 2GiB"),
        ("", "is not a size"),
        ("-1GiB", "at least 1 byte is needed"),
        ("0", "at least 1 byte is needed"),
        ("0.1B", "at least 1 byte is needed"),
        ("9000000TiB", "no machine has as much"),
        ("1e3MiB", "is not a size"),
        ("nanGiB", "is not a size"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_bytes(text, "--memory")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.integers(1, MOST // 2))
def test_what_is_written_is_enough_and_hardly_more(count: int) -> None:
    again = read_bytes(write_bytes(count), "--memory")
    assert count <= again <= count * 1.011 + 1
