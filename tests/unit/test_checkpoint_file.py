"""The checkpoint file: whole or not there, checked before it is used, and never executed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import signal
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BadInput
from lockstep.train.checkpoint_file import PREFIX, Damaged, Draft, Saved, lay_out
from lockstep.train.checkpoint_folder import kept, last_good, path_of, prune
from lockstep.train.records import CannotWrite

TABLE = [("parameter/a", "float32", (3, 5)), ("buffer/none", "int64", (0, 4)), ("optimizer/a/step", "bfloat16", ())]


def contents(step: int) -> dict[str, bytes]:
    places = lay_out(TABLE)
    return {place.name: bytes((step + index) % 256 for index in range(place.nbytes)) for place in places}


def write(path: Path, step: int) -> Path:
    draft = Draft(path, {"step": step}, lay_out(TABLE))
    for name, data in contents(step).items():
        draft.add(name, data)
    draft.finish()
    return path


def check(saved: Saved, step: int) -> None:
    with saved:
        assert saved.header["step"] == step
        assert {place.name: bytes(saved.read(place)) for place in saved.places} == contents(step)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "one.ls", 7)
    check(Saved(path), 7)
    write(path, 8)
    check(Saved(path), 8)
    assert [one.name for one in tmp_path.iterdir()] == ["one.ls"]


def sealed(data: bytes) -> bytes:
    """Give bytes the length and the hash that they state, as somebody who knows the format can."""
    magic, version, length, _ = PREFIX.unpack(data[: PREFIX.size])
    data = PREFIX.pack(magic, version, length, len(data)) + data[PREFIX.size : -32]
    return data + hashlib.sha256(data).digest()


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        _, _, length, _ = PREFIX.unpack(data[: PREFIX.size])
        header = json.loads(data[PREFIX.size : PREFIX.size + length])
        header = change(header) or header
        text = json.dumps(header).encode()
        text += b" " * (-(PREFIX.size + len(text)) % 64)
        rest = data[PREFIX.size + length :]
        return sealed(PREFIX.pack(b"LOCKSTEP", 1, len(text), 0) + text + rest)

    return changed


def row(number: int, column: int, value: Any) -> Callable[[bytes], bytes]:
    def change(header: dict[str, Any]) -> None:
        header["tensors"][number][column] = value

    return with_header(change)


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "has 0 bytes"),
        (lambda data: data[:40], "has 40 bytes"),
        (lambda data: data[:-1], "bytes and should have"),
        (lambda data: data + b"x", "bytes and should have"),
        (lambda data: b"PK\3\4" + data, "is not a checkpoint of Lockstep: it begins with b'PK"),
        (lambda data: pickle.dumps(Bomb()).ljust(200), "is not a checkpoint of Lockstep"),
        (lambda data: data[:64] + pickle.dumps(Bomb()).ljust(len(data) - 64), "SHA-256 is not the one"),
        (
            lambda data: data[:8] + struct.pack("<Q", 2) + data[16:],
            "has version 2, and this version",
        ),
        (lambda data: data[:16] + struct.pack("<Q", 2**60) + data[24:], "cut off or damaged"),
        (lambda data: sealed(data[:32] + b"{" + data[33:64] + b"[" * 20 + data[84:]), "header that cannot be read"),
        (with_header(lambda header: [1]), "header that cannot be read"),
        (with_header(lambda header: {"tensors": 3}), "header that cannot be read"),
        (row(0, 1, "object"), "no tensor is like"),
        (row(0, 2, [-3, 5]), "no tensor is like"),
        (row(0, 2, [2**40, 2**40]), "places parameter/a wrongly"),
        (row(2, 3, 0), "places optimizer/a/step wrongly"),
        (row(2, 0, "parameter/a"), "does not fit its length"),
        (with_header(lambda header: {**header, "tensors": header["tensors"][:1]}), "does not fit its length"),
    ],
)
def test_refused(damage: Callable[[bytes], bytes], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "one.ls", 7)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput) as refused:
        Saved(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert [one.name for one in tmp_path.iterdir()] == ["one.ls"], "something was executed"


def test_no_bit_can_be_flipped(tmp_path: Path) -> None:
    path = write(tmp_path / "one.ls", 7)
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(BadInput):
            Saved(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a file"):
        Saved(tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        Saved(tmp_path / "none.ls")


def test_a_dtype_that_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="parameter/q has dtype qint8"):
        lay_out([("parameter/q", "qint8", (1,))])


def in_child(work: Callable[[], None]) -> int:
    """Run a function in a forked process; return how that ended, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(instant: int, work: Callable[[], None]) -> Callable[[], None]:
    """Return the work with `kill -9` of its process before its n-th call to the system."""

    def run() -> None:
        left = instant

        def counted(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        for name in ("open", "write", "fsync", "close", "replace", "rename", "unlink"):
            setattr(os, name, partial(counted, getattr(os, name)))
        work()

    return run


def test_killed_at_any_instant(tmp_path: Path) -> None:
    """Whatever was being done, the last good checkpoint is the one before or the new one, and two are there."""
    newest = []
    for instant in range(100):
        folder = tmp_path / str(instant)
        folder.mkdir()
        for step in (1, 2):
            write(path_of(folder, step), step)

        def work(folder: Path = folder) -> None:
            write(path_of(folder, 3), 3)
            prune(folder)

        code = in_child(killed_at(instant, work))
        assert code in (0, -signal.SIGKILL)
        saved, damaged = last_good(folder)
        newest.append(int(saved.header["step"]))
        check(saved, newest[-1])
        assert not damaged
        assert len(kept(folder)) >= 2
        write(path_of(folder, 4), 4)
        prune(folder)
        assert sorted(one.name for one in folder.iterdir()) == [
            f"checkpoint-{newest[-1]:06}.ls",
            "checkpoint-000004.ls",
        ]
        if code == 0:
            break
    assert len(newest) > 10
    assert newest == sorted(newest)
    assert set(newest) == {2, 3}


def test_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk: the kernel cuts the draft off."""
    write(path_of(tmp_path, 1), 1)
    large = lay_out([("parameter/a", "float32", (5000,))])

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
        draft = Draft(path_of(tmp_path, 2), {}, large)
        with pytest.raises(CannotWrite, match=r"File too large. What was written before it is whole: make room"):
            draft.add("parameter/a", bytes(20000))
        draft.drop()

    assert in_child(work) == 0
    check(last_good(tmp_path)[0], 1)
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint-000001.ls"]


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    for step in (1, 2):
        write(path_of(tmp_path, step), step)
    path_of(tmp_path, 2).write_bytes(b"")
    saved, damaged = last_good(tmp_path)
    check(saved, 1)
    assert "checkpoint-000002.ls has 0 bytes" in damaged[0]
    path_of(tmp_path, 1).write_bytes(b"x")
    with pytest.raises(BadInput, match="no checkpoint that is whole"):
        last_good(tmp_path)


def test_another_version_is_not_passed_over(tmp_path: Path) -> None:
    """It is newer, not damaged: to go on from an older state would throw work away."""
    for step in (1, 2):
        write(path_of(tmp_path, step), step)
    data = path_of(tmp_path, 2).read_bytes()
    path_of(tmp_path, 2).write_bytes(data[:8] + struct.pack("<Q", 9) + data[16:])
    with pytest.raises(BadInput, match="has version 9") as refused:
        last_good(tmp_path)
    assert not isinstance(refused.value, Damaged)


def test_places_and_tensors_must_agree(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "one.ls", {}, lay_out(TABLE))
    with pytest.raises(ValueError, match=r"the header expects .* of parameter/a"):
        draft.add("buffer/none", b"x")
    with pytest.raises(ValueError, match="3 tensors are missing"):
        draft.finish()
    draft.drop()
    draft.drop()
    assert not list(tmp_path.iterdir())
