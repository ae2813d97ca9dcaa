"""Settings as JSON and back: every bit and type, or a refusal."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
import torch

from lockstep.errors import BadInput
from lockstep.train.plain_data import decode, encode


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -0.0,
        0.1,
        2**80,
        "text",
        [1, [2.5]],
        (0.9, 0.999),
        {"a": (1,), 3: None},
        Counter({3: 2}),
        math.inf,
    ],
)
def test_round_trip(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value, "it"), allow_nan=False)))
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [torch.tensor(0.1, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bfloat16)])
def test_small_tensors(value: torch.Tensor) -> None:
    found = decode(json.loads(json.dumps(encode({"lr": value}, "it"))))["lr"]
    assert found.dtype == value.dtype
    assert torch.equal(found, value)
    assert math.isnan(decode(encode(math.nan, "it")))


@pytest.mark.parametrize("value", [object(), {1}, print, b"bytes", torch.zeros(1 << 17), [lambda: 0]])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match=r"the schedule.* is a \w+, and a checkpoint holds numbers"):
        encode(value, "the schedule")


@pytest.mark.parametrize(
    "value",
    [
        {"float": "1e9"},
        {"call": []},
        {},
        {"a": 1, "b": 2},
        {"tuple": 3},
        {"dict": [[[], 1]]},
        {"tensor": ["storage", [1], "00"]},
        {"tensor": ["float32", [7], "00000000"]},
        {"tensor": ["float32", [0], ""]},
    ],
)
def test_what_encode_did_not_make(value: Any) -> None:
    with pytest.raises(BadInput, match="is no value of a checkpoint"):
        decode(value)
