"""The checkpoint file: whole or not there, checked before it is used, and never executed."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lockstep.errors import BadInput
from lockstep.train.checkpoint_file import Draft, Saved
from lockstep.train.checkpoint_folder import kept, last_good, path_of, prune
from lockstep.train.records import CannotWrite
from lockstep.train.tensor_file import Damaged
from lockstep.train.tensor_format import METADATA, PREFIX
from tests.unit.tensor_files import TABLE, check, contents, sealed, with_content, with_header, write


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "one.safetensors", 7)
    check(Saved(path), 7)
    write(path, 8)
    check(Saved(path), 8)
    assert [one.name for one in tmp_path.iterdir()] == ["one.safetensors"]


def test_any_reader_opens_it(tmp_path: Path) -> None:
    """Parameters and buffers have the plain model's names."""
    with safe_open(write(tmp_path / "one.safetensors", 7), "pt") as file:
        assert set(file.keys()) == {"a", "none", "count", "optimizer/a/step"}
        assert file.get_tensor("a").shape == (3, 5)
        assert bytes(file.get_tensor("a").view(torch.uint8).flatten().tolist()) == contents(7)["parameter/a"]


def row(name: str, field: str, value: Any) -> Callable[[bytes], bytes]:
    def change(header: dict[str, Any]) -> None:
        header[name][field] = value

    return with_header(change, seal=False)


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "has 0 bytes: it is no checkpoint file, or was cut off"),
        (lambda data: data[:40], "has 40 bytes, and its header alone has"),
        (lambda data: data[:-1], "bytes and should have"),
        (lambda data: data + b"x", "bytes and should have"),
        (lambda data: b"PK\3\4" + data, r"is no safetensors file: it begins with b'PK\x03\x04"),
        (lambda data: pickle.dumps(Bomb()).ljust(200), "is no safetensors file"),
        (lambda data: data[:-64] + pickle.dumps(Bomb())[:64].ljust(64), "SHA-256 is not the one"),
        (lambda data: b"LOCKSTEP" + data, "written by an older version of Lockstep"),
        (lambda data: PREFIX.pack(2**60) + data[8:], "is no safetensors file"),
        (lambda data: PREFIX.pack(99_999_999) + data[8:], "its header alone has 99999999: it is cut off or damaged"),
        (lambda data: data[:8] + b"[" * 100_000 + data[8:], "header that cannot be read"),
        (lambda data: PREFIX.pack(90_000) + b"[" * 90_000, "header that cannot be read"),
        (lambda data: data[:9] + b"\xff" + data[10:], "header that cannot be read"),
        (with_content(lambda content: [1]), "header that cannot be read"),
        (with_content(lambda content: content.pop("kind") and None), "header that cannot be read: 'kind'"),
        (with_content(lambda content: {**content, "dtypes": {"a": "complex128"}}), "a' is no pairs of numbers"),
        (with_content(lambda content: {**content, "dtypes": {"b": "complex128"}}), "b' is not in it"),
        (with_content(lambda content: {**content, "dtypes": {"a": "object"}}), "its dtypes are not known"),
        (with_content(lambda content: {**content, "buffers": ["b"]}), "does not say which tensors are buffers"),
        (with_content(lambda content: {**content, "buffers": [["a"]]}), "does not say which tensors are buffers"),
        (
            with_content(lambda content: {**content, "kind": "weights"}),
            "it holds the weights of a run, without the opt",
        ),
        (with_content(lambda content: {**content, "kind": "recipe"}), "it says that it is 'recipe'"),
        (with_content(lambda content: {**content, "kind": ["weights"]}), "it says that it is ['weights']"),
        (with_content(lambda content: {**content, "schema": 3}), "has schema 3, and this version of Lockstep reads 2"),
        (row("a", "dtype", "object"), "no tensor is like"),
        (row("a", "shape", [-3, 5]), "no tensor is like"),
        (row("a", "shape", [2**40, 2**40]), "a' has 60 bytes, and its shape needs"),
        (row("count", "data_offsets", [8, 16]), "count' does not begin where the tensor before it ends"),
        (with_header(lambda header: header.pop("a") and None, seal=False), "does not begin where the tensor before"),
        (
            with_header(lambda header: header.pop("optimizer/a/step") and None),
            "bytes and should have",
        ),
        (
            with_header(lambda header: header.pop(METADATA) and None, seal=False),
            "but not one of a run: load weights by",
        ),
        (with_header(lambda header: header[METADATA].pop("sha256") and None, seal=False), "but not one of a run"),
    ],
)
def test_refused(damage: Callable[[bytes], bytes], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "one.safetensors", 7)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput) as refused:
        Saved(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [one.name for one in tmp_path.iterdir()] == ["one.safetensors"], "something was executed"


def test_weights_of_somebody_else(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(Damaged, match=r"but not one of a run: load weights by model\.load_state_dict\(load_file\(path"):
        Saved(tmp_path / "model.safetensors")


def test_no_bit_can_be_flipped(tmp_path: Path) -> None:
    path = write(tmp_path / "one.safetensors", 7)
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(BadInput):
            Saved(path)


def test_no_byte_can_be_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "one.safetensors", 7)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(Damaged):
            Saved(path)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_changed_by_somebody_who_knows_the_hash(tmp_path: Path, seed: int) -> None:
    """A file that is sealed again is read as it says, or refused; there is never another error."""
    path = write(tmp_path / "one.safetensors", 7)
    good, draw = path.read_bytes(), random.Random(seed)
    read = refused = 0
    for _ in range(150):
        data = bytearray(good)
        data[draw.randrange(len(good))] = draw.choice(b'\x00\xff "{}[]:,0917ab\\-.e')
        try:
            forged = sealed(bytes(data))
        except (ValueError, TypeError, KeyError, AttributeError):
            forged = bytes(data)  # not even the forger can read it
        path.write_bytes(forged)
        try:
            with Saved(path) as saved:
                assert all(len(saved.read(name)) == one.nbytes for name, one in saved.tensors.items())
            read += 1
        except BadInput:
            refused += 1
    assert read
    assert refused


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a file"):
        Saved(tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        Saved(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("parameter/q", "q has dtype qint8"),
        ("parameter/optimizer/q/step", "optimizer/q/step is a name that a checkpoint keeps for the optimizer's state"),
    ],
)
def test_what_it_cannot_hold(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Draft(tmp_path / "one.safetensors", {}, [(name, "qint8", (1,))])
    assert not list(tmp_path.iterdir())


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

        for name in ("open", "pwrite", "fsync", "close", "replace", "rename", "unlink", "link"):
            setattr(os, name, partial(counted, getattr(os, name)))
        work()

    return run


def test_killed_at_any_instant(tmp_path: Path) -> None:
    """Whatever was being done, the last good checkpoint is the one before or the new one, and two are there.

    A draft is left only between two calls, when it has a name and is not in place yet.
    """
    newest, left = [], 0
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
        left += len(list(folder.glob(".*")))
        saved, damaged = last_good(folder)
        newest.append(int(saved.header["step"]))
        check(saved, newest[-1])
        assert not damaged
        assert len(kept(folder)) >= 2
        write(path_of(folder, 4), 4)
        prune(folder)
        assert sorted(one.name for one in folder.iterdir()) == [
            f"checkpoint-{newest[-1]:06}.safetensors",
            "checkpoint-000004.safetensors",
        ]
        if code == 0:
            break
    assert len(newest) > 10
    assert newest == sorted(newest)
    assert set(newest) == {2, 3}
    assert left <= 3


def test_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk: the kernel cuts the draft off."""
    write(path_of(tmp_path, 1), 1)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
        draft = Draft(path_of(tmp_path, 2), {}, [("parameter/a", "float32", (5000,))])
        with pytest.raises(CannotWrite, match=r"File too large. What was written before it is whole: make room"):
            draft.add("parameter/a", bytes(20000))
        draft.drop()

    assert in_child(work) == 0
    check(last_good(tmp_path)[0], 1)
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint-000001.safetensors"]


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    for step in (1, 2):
        write(path_of(tmp_path, step), step)
    path_of(tmp_path, 2).write_bytes(b"")
    saved, damaged = last_good(tmp_path)
    check(saved, 1)
    assert "checkpoint-000002.safetensors has 0 bytes" in damaged[0]
    path_of(tmp_path, 1).write_bytes(b"x")
    with pytest.raises(BadInput, match="no checkpoint that is whole"):
        last_good(tmp_path)


def test_another_version_is_not_passed_over(tmp_path: Path) -> None:
    """It is newer, not damaged: to go on from an older state would throw work away."""
    for step in (1, 2):
        write(path_of(tmp_path, step), step)
    newer = with_content(lambda content: {**content, "schema": 9})
    path_of(tmp_path, 2).write_bytes(newer(path_of(tmp_path, 2).read_bytes()))
    with pytest.raises(BadInput, match="has schema 9") as refused:
        last_good(tmp_path)
    assert not isinstance(refused.value, Damaged)


def test_checkpoints_of_an_older_version(tmp_path: Path) -> None:
    """One line says so, by the name and by the content."""
    (tmp_path / "checkpoint-000003.ls").write_bytes(b"LOCKSTEP" + bytes(100))
    with pytest.raises(BadInput, match=r"has checkpoint-000003\.ls, which an older version of Lockstep wrote"):
        last_good(tmp_path)
    with pytest.raises(BadInput, match="was written by an older version of Lockstep"):
        Saved(tmp_path / "checkpoint-000003.ls")


def test_header_and_tensors_must_agree(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "one.safetensors", {}, TABLE)
    with pytest.raises(ValueError, match="1 bytes of b, and the header expects none of it"):
        draft.add("parameter/b", b"x")
    draft.add("parameter/a", bytes(50))
    with pytest.raises(ValueError, match="11 bytes of a, and the header expects 10 of it"):
        draft.add("parameter/a", bytes(11))
    draft.add("optimizer/a/step", bytes(2))
    with pytest.raises(ValueError, match="2 tensors are missing or cut: a is the first"):
        draft.finish()
    draft.drop()
    draft.drop()
    assert not list(tmp_path.iterdir())
