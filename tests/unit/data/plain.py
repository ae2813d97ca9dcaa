"""Any kind of item, drawn by hypothesis, and what a plain list of them would say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float16]
DTYPES += [torch.int32, torch.complex64, torch.uint16, torch.float8_e4m3fn]
# A busy machine is no failure of the test.
PATIENT = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
SIZES = st.integers(0, 4)
SCALARS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, width=32), st.booleans())


@st.composite
def shapes(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    """Shapes of one field over all items: alike, alike but for some dimensions, or of any rank."""
    rank = draw(st.integers(0, 3))
    base = draw(st.tuples(*[SIZES] * rank))
    form = draw(st.sampled_from(["fixed", "leading", "any", "ranks"]))
    if form == "fixed" or rank == 0:
        return [base] * count
    if form == "leading":
        return [(draw(SIZES), *base[1:]) for _ in range(count)]
    if form == "any":
        return [draw(st.tuples(*[SIZES] * rank)) for _ in range(count)]
    return [draw(st.lists(SIZES, max_size=3).map(tuple)) for _ in range(count)]


@st.composite
def fields(draw: st.DrawFn, count: int) -> list[Any]:
    """One field of all items."""
    kind = draw(st.sampled_from(["tensor", "array", "text", "bytes", "number"]))
    if kind == "text":
        return [draw(st.text("aé日\0\ud800", max_size=6)) for _ in range(count)]
    if kind == "bytes":
        return [draw(st.binary(max_size=6)) for _ in range(count)]
    if kind == "number":
        one = draw(SCALARS)
        return [type(one)(draw(st.integers(0, 9))) for _ in range(count)]
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 999))
    made = [_tensor(shape, dtype, seed + i) for i, shape in enumerate(draw(shapes(count)))]
    if kind == "array" and dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        return [tensor.numpy() for tensor in made]
    return [tensor.mT if tensor.dim() == 2 and draw(st.booleans()) else tensor for tensor in made]


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@st.composite
def lists(draw: st.DrawFn, least: int = 0) -> list[Any]:
    """A plain list of items of one structure."""
    count = draw(st.integers(least, 7))
    structure = draw(st.sampled_from(["value", "tuple", "dict"]))
    if structure == "value":
        return draw(fields(count))
    columns = [draw(fields(count)) for _ in range(draw(st.integers(1, 3)))]
    if structure == "tuple":
        return list(zip(*columns, strict=True))
    return [{f"field {i}": column[row] for i, column in enumerate(columns)} for row in range(count)]


def same(found: Any, expected: Any) -> bool:
    """Say whether what a Ragged gave is what the list holds; arrays and numbers come back as tensors."""
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, tuple):
        return type(found) is tuple and same(list(found), list(expected))
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, (str, bytes)):
        return type(found) is type(expected) and bool(found == expected)
    if isinstance(expected, np.ndarray):
        expected = torch.from_numpy(np.ascontiguousarray(expected).reshape(expected.shape))
    if not isinstance(expected, Tensor):
        expected = torch.tensor(expected, dtype=torch.float64 if isinstance(expected, float) else None)
    alike = found.dtype == expected.dtype and found.shape == expected.shape
    return alike and raw(found) == raw(expected)


def raw(tensor: Tensor) -> bytes:
    """Return a tensor's bytes: types without arithmetic cannot be compared otherwise."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
