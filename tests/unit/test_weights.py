"""The final weights: a plain model loads them, and two runs are compared by them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from lockstep.comm.group import Group
from lockstep.errors import BadInput
from lockstep.state.holdings import model_holdings
from lockstep.train import weights_difference
from lockstep.train.final_weights import check_weights, weight_names, write_weights
from lockstep.train.tensor_file import TensorFile
from lockstep.train.weights_difference import largest_difference, too_large


class Tied(nn.Module):
    """Two names for one parameter and for one buffer, and a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        mask = torch.tensor([True, False])
        self.register_buffer("mask", mask)
        self.register_buffer("again", mask)
        self.register_buffer("cache", torch.zeros(7), persistent=False)


def folder(path: Path, model: nn.Module, most_bytes: int | None = None) -> Path:
    """Write a model's weights into a folder."""
    path.mkdir(exist_ok=True)
    write_weights(path / "final.safetensors", Group.alone(), model_holdings(model), model, {"step": 3}, most_bytes)
    return path


def test_a_plain_model_loads_them(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    path = folder(tmp_path / "run", model) / "final.safetensors"
    other.load_state_dict(load_file(path))
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert other.head.weight is other.embed.weight
    assert set(load_file(path)) == {"embed.weight", "head.weight", "scale", "mask", "again"}
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["lockstep"])
    assert about == {
        "kind": "weights",
        "schema": 2,
        "step": 3,
        "tied": {"head.weight": "embed.weight", "again": "mask"},
    }


def test_every_dtype_stays_what_it_is(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)
    loaded = load_file(folder(tmp_path, model) / "final.safetensors")
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {
        name: tensor.dtype for name, tensor in model.state_dict().items()
    }
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_a_layout_in_memory_of_another_order(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 4, 2)
    model.weight.data = model.weight.data.to(memory_format=torch.channels_last)
    other = nn.Conv2d(3, 4, 2)
    other.load_state_dict(load_file(folder(tmp_path, model) / "final.safetensors"))
    assert torch.equal(other.weight, model.weight)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_names_of_a_compiled_model_are_the_plain_ones(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    compiled = torch.compile(plain, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert weight_names(compiled)["0.bias"] == "parameter/_orig_mod.0.bias"
    other = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    other.load_state_dict(load_file(folder(tmp_path, compiled) / "final.safetensors"))
    assert torch.equal(other.get_parameter("0.bias"), plain.get_parameter("0.bias"))


def test_state_by_code_is_left_out() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> object:
            return {"calls": 3}

    assert weight_names(Extra(3, 2)) == {"weight": "parameter/weight", "bias": "parameter/bias"}


def test_a_model_that_cannot_be_written_is_refused_before_it_is_trained() -> None:
    model = nn.Linear(3, 2)
    check_weights(model)
    model.register_buffer("scales", torch.zeros(2, dtype=torch.uint8).view(torch.float8_e8m0fnu))
    with pytest.raises(BadInput, match="scales has dtype float8_e8m0fnu, which a safetensors file cannot hold"):
        check_weights(model)


def test_weights_above_a_limit_are_not_kept(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    folder(tmp_path, model, 31)
    assert not list(tmp_path.iterdir())
    folder(tmp_path, model, 32)
    assert [path.name for path in tmp_path.iterdir()] == ["final.safetensors"]


def test_they_are_compared_to_the_last_bit(tmp_path: Path) -> None:
    layer, norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
    model = nn.Sequential(layer, norm).to(torch.bfloat16)
    a = folder(tmp_path / "a", model)
    with torch.no_grad():
        layer.bias[1] += 0.25
        assert norm.running_var is not None
        norm.running_var[0] = float("nan")
    b = folder(tmp_path / "b", model)
    assert largest_difference(a, a) == (0.0, "")
    assert largest_difference(b, b) == (0.0, ""), "no number on both sides"
    gap, where = largest_difference(a, b) or (0.0, "")
    assert (math.isnan(gap), where) == (True, "1.running_var"), "no number on one side only, named as such"
    (tmp_path / "c").mkdir()
    assert largest_difference(a, tmp_path / "c") is None
    assert largest_difference(a, folder(tmp_path / "c", nn.Linear(3, 2))) is None, "another model"


class One(nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", values)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
    ],
)
def test_values_of_every_dtype_are_compared(tmp_path: Path, dtype: torch.dtype) -> None:
    """Against torch's own reading of every code of a byte, in several blocks."""
    torch.manual_seed(0)
    a, b = (torch.randint(0, 256, (4096,), dtype=torch.uint8).view(dtype) for _ in range(2))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    both = [torch.view_as_real(one.to(wide)) if dtype.is_complex else one.to(wide) for one in (a, b)]
    bad = ~(both[0].isfinite() & both[1].isfinite()).reshape(len(a), -1).all(1)
    a, b = a.clone(), b.clone()
    for one in (a, b):
        one.view(torch.uint8).reshape(len(a), -1)[bad] = 0
    expected = torch.where(bad.reshape(-1, *[1] * (both[0].dim() - 1)), 0.0, both[0] - both[1]).abs().max()
    folders = [folder(tmp_path / name, One(one)) for name, one in (("a", a), ("b", b))]
    assert largest_difference(*folders) == (float(expected), "weight")


def test_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference stands in the last of several blocks, and the two sides have dtypes of different size."""
    monkeypatch.setattr(weights_difference, "BLOCK", 4)
    values = torch.arange(10.0)
    a = folder(tmp_path / "a", One(values))
    values[9] += 2.0
    b = folder(tmp_path / "b", One(values.to(torch.bfloat16)))
    assert largest_difference(a, b) == (2.0, "weight")


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ([math.inf, -math.inf], [math.inf, -math.inf], (0.0, "")),
        ([math.inf, 1.0], [math.inf, 1.5], (0.5, "weight")),
        ([math.inf, 1.0], [-math.inf, 1.0], (math.inf, "weight")),
        ([math.inf, 1.0], [2.0, 1.0], (math.inf, "weight")),
        ([math.nan, math.inf], [math.nan, math.inf], (0.0, "")),
        ([math.inf, 1.0], [math.nan, 1.0], (math.nan, "weight")),
        ([0.0, 1.0], [math.nan, 1e30], (math.nan, "weight")),
    ],
)
def test_differences_of_what_is_not_finite(
    tmp_path: Path, mine: list[float], theirs: list[float], expected: tuple[float, str]
) -> None:
    folders = [folder(tmp_path / name, One(torch.tensor(one))) for name, one in (("a", mine), ("b", theirs))]
    for pair in (folders, folders[::-1]):
        difference = largest_difference(*pair)
        assert difference is not None
        assert difference[0] == pytest.approx(expected[0], nan_ok=True)
        assert difference[1] == expected[1]


def test_weights_that_are_too_large_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [folder(tmp_path / name, One(torch.ones(3))) for name in "ab"]
    assert not too_large(*folders)
    monkeypatch.setattr(weights_difference, "MOST_BYTES", 10)
    assert too_large(*folders)
    assert largest_difference(*folders) is None
    assert not too_large(folders[0], tmp_path), "there are none"


@pytest.mark.parametrize("damage", ["cut", "head", "kind"])
def test_damaged_weights_are_refused(tmp_path: Path, damage: str) -> None:
    path = folder(tmp_path, nn.Linear(3, 2)) / "final.safetensors"
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-4], "head": data[1:], "kind": data.replace(b"F32", b"O32")}[damage])
    with pytest.raises(BadInput, match=r"final\.safetensors .*Leave this folder out, or run it again"):
        largest_difference(tmp_path, tmp_path)


def test_a_hash_tells_what_was_changed(tmp_path: Path) -> None:
    path = folder(tmp_path, nn.Linear(3, 2)) / "final.safetensors"
    with TensorFile(path, "weights") as file:
        assert set(file.tensors) == {"weight", "bias"}
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(BadInput, match="SHA-256 is not the one"):
        TensorFile(path, "weights")
