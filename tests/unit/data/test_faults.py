"""What can be wrong with a file, a disk, a size or an owner: a clear error, or it simply works."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lockstep.data import Ragged, target
from lockstep.data.ragged_format import HEADER_BYTES, Field, RaggedHeader, Region, Schema, aligned, pack_header
from lockstep.data.tensor_block import TensorBlock
from lockstep.errors import BadInput

ITEMS = [torch.arange(float(i)) for i in range(1, 40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Ragged(ITEMS).save(tmp_path / "data.ragged")
    return tmp_path / "data.ragged"


def rewrite(path: Path, change: Callable[[bytearray], object], *, fix_header: bool = False) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    if fix_header:
        data[96:100] = struct.pack("<I", zlib.crc32(data[:96]))
    path.write_bytes(data)


@pytest.mark.parametrize("size", [0, 5, 60, 127, 128, 1000, -1])
def test_cut_off_anywhere(path: Path, size: int) -> None:
    whole = path.stat().st_size
    os.truncate(path, size % whole)
    with pytest.raises(BadInput, match=r"cut off|not a Ragged"):
        Ragged.open(path)


def test_something_added(path: Path) -> None:
    rewrite(path, lambda data: data.extend(b"more"))
    with pytest.raises(BadInput, match="bytes were added"):
        Ragged.open(path)


def test_another_version(path: Path) -> None:
    rewrite(path, lambda data: data.__setitem__(8, 9), fix_header=True)
    with pytest.raises(BadInput, match="format version 9, and this release reads version 1"):
        Ragged.open(path)


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip file " * 50, b"x", b"\x89RAGGED\r\n" + bytes(400)])
def test_foreign_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(BadInput, match="is not a Ragged: it begins with"):
        Ragged.open(tmp_path / "other")


def test_every_damaged_byte_of_header_and_schema_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    schema_at = struct.unpack_from("<Q", whole, 40)[0]
    for position in [*range(100), *range(schema_at, len(whole), 7)]:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        with pytest.raises(BadInput):
            Ragged.open(path)


def test_a_hash_that_fails(path: Path) -> None:
    Ragged.open(path, verify=True)
    rewrite(path, lambda data: data.__setitem__(HEADER_BYTES + 17, data[HEADER_BYTES + 17] ^ 1))
    Ragged.open(path)
    with pytest.raises(BadInput, match="its SHA-256 is"):
        Ragged.open(path, verify=True)


def test_no_hash_to_verify(tmp_path: Path) -> None:
    Ragged.write(tmp_path / "x", ITEMS, hashed=False)
    with pytest.raises(BadInput, match="has no hash"):
        Ragged.open(tmp_path / "x", verify=True)


def test_offsets_that_point_elsewhere_are_errors_not_crashes(path: Path) -> None:
    ragged = Ragged.open(path)
    region = ragged._mapping.schema.fields[0].offsets
    assert region is not None
    at = region.at
    rewrite(path, lambda data: data.__setitem__(slice(at + 80, at + 88), struct.pack("<q", 2**60)))
    with pytest.raises(BadInput, match="the offsets of field '' fall, or lead out of its values"):
        Ragged.open(path)
    rewrite(path, lambda data: data.__setitem__(slice(at, at + 8), struct.pack("<q", 1)))
    with pytest.raises(BadInput, match="is damaged: field"):
        Ragged.open(path)


@pytest.mark.parametrize("name", ["none", "folder"])
def test_nothing_to_open(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=r"cannot open .*none: No such file|folder is not a file|Is a directory"):
        Ragged.open(tmp_path / name)


def test_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot write .* No such file or directory"):
        Ragged(ITEMS).save(tmp_path / "no" / "x")


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of at most 64 KiB: what goes beyond fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("fields", [1, 2])
def test_no_half_file_when_writing_fails(tmp_path: Path, fields: int) -> None:
    items = [torch.zeros(5000) if fields == 1 else (torch.zeros(5000), torch.zeros(4999)) for _ in range(9)]
    ours = tmp_path / "x"
    ours.write_bytes(b"what was there before")
    with pytest.raises(BadInput, match=r"cannot write .*File too large; free some space, or choose another folder"):
        Ragged.write(ours, items)
    assert [found.name for found in tmp_path.iterdir()] == ["x"]
    assert ours.read_bytes() == b"what was there before"


def test_an_error_of_the_source_is_its_own(tmp_path: Path) -> None:
    def source() -> Iterator[torch.Tensor]:
        yield torch.ones(1)
        raise OSError("the tape broke")

    with pytest.raises(OSError, match="the tape broke"):
        Ragged.write(tmp_path / "x", source())
    assert not list(tmp_path.iterdir())


def test_not_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "free_bytes", lambda: 1000)
    with pytest.raises(BadInput, match=r"does not fit in memory: .*Ragged\.write"):
        Ragged([torch.zeros(1000)])


def test_writes_that_come_back_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel moves at most 2 GiB in a call, and fewer when a signal arrives."""
    write, writev = os.write, os.writev
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:1000]))
    monkeypatch.setattr(os, "writev", lambda fd, buffers: write(fd, memoryview(b"".join(buffers))[:700]) or writev)
    monkeypatch.setattr(TensorBlock, "writev", lambda block, fd: write(fd, b"".join(block.buffers())[:900]))
    assert [len(item) for item in Ragged.write(tmp_path / "x", ITEMS)] == list(range(1, 40))
    assert torch.equal(Ragged.open(tmp_path / "x", verify=True)[38], ITEMS[38])


def test_a_block_that_cannot_be_written() -> None:
    block = TensorBlock.of(ITEMS, torch.float32)
    assert block is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        block.writev(-1)


def test_no_items(tmp_path: Path) -> None:
    empty = Ragged([])
    empty.save(tmp_path / "x")
    for one in (empty, Ragged.open(tmp_path / "x", verify=True), Ragged.write(tmp_path / "y", iter(()))):
        assert len(one) == 0
        assert list(one) == one[:] == one[[]] == []
        with pytest.raises(IndexError, match="index 0 is out of range for 0 items"):
            one[0]
    assert len(empty + Ragged(ITEMS)) == len(ITEMS)


def test_items_of_no_elements() -> None:
    ragged = Ragged([torch.zeros(0, 3), torch.zeros(2, 3), torch.zeros(0, 3)])
    assert [tuple(item.shape) for item in ragged] == [(0, 3), (2, 3), (0, 3)]
    assert ragged.gather([0, 2], "padded").values.shape == (2, 0, 3)
    assert Ragged([torch.zeros(0)] * 3).gather([1, 2]).shape == (2, 0)


def test_a_million_tiny_items() -> None:
    tiny = [torch.arange(length) for length in range(3)]
    ragged = Ragged([tiny[i % 3] for i in range(1_000_000)])
    assert len(ragged) == 1_000_000
    assert ragged[999_998].tolist() == [0, 1]
    assert ragged.gather([0, 1, 2, 999_999]).values.tolist() == [0, 0, 1]
    assert len(list(Path("/proc/self/fd").iterdir())) < 100


def test_an_item_beyond_four_gib(tmp_path: Path) -> None:
    """A sparse file: the item is there, and takes no room."""
    count, tail = 5 * 2**30 + 3, b"end of the item"
    values, table = Region(at=HEADER_BYTES, size=count + 2), Region(at=aligned(HEADER_BYTES + count + 2), size=24)
    at = aligned(table.at + table.size)
    field = Field(name="", kind="tensor", dtype="uint8", shape=(None,), values=values, offsets=table, shapes=None)
    schema = Schema(items=2, structure="value", fields=(field,)).as_json()
    with open(tmp_path / "huge", "wb") as file:
        file.write(pack_header(RaggedHeader(token=bytes(16), size=at + len(schema), schema_at=at, schema=schema)))
        file.seek(HEADER_BYTES + count - len(tail))
        file.write(tail + b"\1\2")
        file.seek(table.at)
        file.write(struct.pack("<3q", 0, count, count + 2))
        file.seek(at)
        file.write(schema)
    ragged = Ragged.open(tmp_path / "huge")
    assert ragged[0].numel() == count
    assert bytes(ragged[0][-len(tail) :].tolist()) == tail
    assert ragged[1].tolist() == [1, 2]
    ragged[0][2**32 + 1] = 7
    assert ragged[0][2**32 + 1] == 7
    (tmp_path / "huge").unlink()


def test_an_owner_that_is_gone() -> None:
    code = "import torch,pickle,sys; from lockstep.data import Ragged; r=Ragged([torch.ones(3)]); "
    code += "sys.stdout.buffer.write(pickle.dumps(r))"
    handle = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    with pytest.raises(BadInput, match=r"process .* does not hold it"):
        pickle.loads(handle)


def test_a_handle_whose_file_was_replaced_or_removed(path: Path) -> None:
    handle = pickle.dumps(Ragged.open(path))
    assert len(pickle.loads(handle)) == len(ITEMS)
    Ragged([torch.ones(1)]).save(path)
    with pytest.raises(BadInput, match="has changed since the handle was made"):
        pickle.loads(handle)
    path.unlink()
    with pytest.raises(BadInput, match="cannot open"):
        pickle.loads(handle)
