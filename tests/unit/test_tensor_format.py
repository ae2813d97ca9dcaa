"""The safetensors format as we write it, read by the format's own package."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file, save_file

from lockstep.errors import BadInput
from lockstep.train.tensor_file import TensorDraft, TensorFile, as_bytes
from lockstep.train.tensor_format import ALIGN, DTYPES, PAIRS, PREFIX, element_bytes, place_tensors, read_layout

NAMES = [*DTYPES, *PAIRS]


def value(dtype: str, *shape: int) -> torch.Tensor:
    """Return a tensor with all kinds of bytes in it."""
    count = element_bytes(dtype) * int(np.prod(shape))
    data = torch.randint(0, 2 if dtype == "bool" else 256, (count,), dtype=torch.uint8)
    return data.view(getattr(torch, dtype)).reshape(shape)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Write tensors in an order of their own, in pieces of their own."""
    table = [(name, str(one.dtype).removeprefix("torch."), tuple(one.shape)) for name, one in tensors.items()]
    draft = TensorDraft(path, "weights", {"note": "é"}, table)
    for name in random.Random(4).sample(list(tensors), len(tensors)):
        data = as_bytes(tensors[name])
        draft.add(name, data[: len(data) // 3])
        draft.add(name, data[len(data) // 3 :])
    draft.finish()
    return path


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes(as_bytes(a)) == bytes(as_bytes(b))


def test_the_package_reads_every_dtype(tmp_path: Path) -> None:
    """Sizes that are no multiple of anything, an empty tensor, a number without dimensions; halves stay halves."""
    torch.manual_seed(0)
    tensors = {f"{dtype}.{len(shape)}": value(dtype, *shape) for dtype in DTYPES for shape in [(3, 5), (0, 4), ()]}
    path = write(tmp_path / "all.safetensors", tensors)
    loaded = load_file(path)
    assert set(loaded) == set(tensors)
    assert all(same(loaded[name], tensor) for name, tensor in tensors.items())
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        assert same(file.get_slice("float16.2")[1:, :2], tensors["float16.2"][1:, :2].contiguous())
    assert set(metadata) == {"sha256", "format", "lockstep"}
    assert metadata["format"] == "pt"
    assert json.loads(metadata["lockstep"]) == {"kind": "weights", "schema": 2, "note": "é"}
    plain = {name: tensor for name, tensor in tensors.items() if name.startswith(("float32", "int64", "complex64"))}
    arrays = load_numpy(write(tmp_path / "plain.safetensors", plain))
    assert all(arrays[name].tobytes() == bytes(as_bytes(tensor)) for name, tensor in plain.items())


def test_what_the_format_has_no_name_for(tmp_path: Path) -> None:
    """Others read pairs; we read what it was."""
    tensor = torch.tensor([[1 + 2j, -0.5j]], dtype=torch.complex128)
    path = write(tmp_path / "pairs.safetensors", {"z": tensor, "empty": tensor[:0]})
    assert torch.equal(torch.view_as_complex(load_file(path)["z"]), tensor)
    with TensorFile(path, "weights") as file:
        assert [(one.name, one.dtype, one.shape) for one in file.tensors.values()] == [
            ("z", "complex128", (1, 2)),
            ("empty", "complex128", (0, 2)),
        ]
        assert bytes(file.read("z")) == bytes(as_bytes(tensor))


def test_the_layout_is_aligned_and_without_holes(tmp_path: Path) -> None:
    table = [(f"{dtype}.{count}", dtype, (count,)) for dtype in NAMES for count in (3, 1, 0)]
    tensors = place_tensors(table)
    assert [tensor.name for tensor in tensors] == [name for name, _, _ in table], "the order is kept"
    end = 0
    for tensor in sorted(tensors, key=lambda one: (one.start, one.nbytes)):
        assert tensor.start == end
        assert tensor.start % min(8, element_bytes(tensor.dtype)) == 0
        end += tensor.nbytes
    path = write(tmp_path / "one.safetensors", {"a": torch.ones(3)})
    (length,) = PREFIX.unpack(path.read_bytes()[: PREFIX.size])
    assert (PREFIX.size + length) % ALIGN == 0


def test_a_file_of_the_package_has_our_layout(tmp_path: Path) -> None:
    """Both sides agree on what a header says."""
    torch.manual_seed(1)
    tensors = {dtype: value(dtype, 3, 5) for dtype in DTYPES}
    save_file(tensors, tmp_path / "theirs.safetensors", {"format": "pt"})
    data = (tmp_path / "theirs.safetensors").read_bytes()
    (length,) = PREFIX.unpack(data[: PREFIX.size])
    layout = read_layout(data[PREFIX.size : PREFIX.size + length])
    assert layout.metadata == {"format": "pt"}
    begin = PREFIX.size + length
    assert begin + layout.nbytes == len(data)
    for one in layout.tensors:
        assert (one.dtype, one.shape) == (one.name, (3, 5))
        assert data[begin + one.start : begin + one.start + one.nbytes] == bytes(as_bytes(tensors[one.name]))


ROW = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"a":3}',
        '{"__metadata__":{"a":3}}',
        '{"__metadata__":[]}',
        f'{{"a":{ROW},"a":{ROW}}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
        '{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[true,2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}',
        '{"a":{"dtype":"O8","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":["F32"],"shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}}',
        '{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}',
        f'{{"a":{ROW},"b":{{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}}}',
        f'{{"a":{ROW},"b":{{"dtype":"F32","shape":[2],"data_offsets":[16,24]}}}}',
    ],
)
def test_headers_that_the_format_does_not_allow(text: str, tmp_path: Path) -> None:
    """What we refuse, the package refuses too, but for a name that stands there twice and a field of another name."""
    with pytest.raises((ValueError, TypeError)):
        read_layout(text.encode())
    if '"more"' in text or text.count('"a"') == 2:
        return
    path = tmp_path / "bad.safetensors"
    path.write_bytes(PREFIX.pack(len(text)) + text.encode() + bytes(8))
    with pytest.raises((SafetensorError, KeyError)):
        load_file(path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([("q", "qint8", (1,))], "q has dtype qint8, which a safetensors file cannot hold"),
        ([("__metadata__", "int8", (1,))], "the name __metadata__ is taken"),
        ([("a", "int8", (1,)), ("a", "int8", (1,))], "the name a is taken"),
    ],
)
def test_what_a_file_cannot_hold(table: list[tuple[str, str, tuple[int, ...]]], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        place_tensors(table)


def test_a_header_that_readers_would_refuse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.train.tensor_format.MOST_HEADER", 1000)
    with pytest.raises(BadInput, match="the names and settings take"):
        TensorDraft(tmp_path / "one.safetensors", "weights", {"long": "x" * 1000}, [])
    assert not list(tmp_path.iterdir())
