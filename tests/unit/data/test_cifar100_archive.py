"""The standard CIFAR-100 archive, imitated byte for byte in its form: what is read, and what is refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.data import cifar100_archive
from lockstep.data.cifar100_archive import open_images, read
from lockstep.errors import BadInput
from lockstep.recipe_file import load

ROWS = 12
IMAGES = np.random.default_rng(4).integers(0, 256, (ROWS, 3072), dtype=np.uint8)
LABELS = [(7 * i) % 100 for i in range(ROWS)]


def string(text: bytes) -> bytes:
    """A str of Python 2, as its pickles hold them."""
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def python2(images: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    """A part as the archive has it: protocol 2, text as bytes, the array by numpy's old names."""
    rows, columns = images.shape
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0t" + string(b"b") + b"tR(K\1"
    array += b"(M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"t"
    array += (
        b"cnumpy\ndtype\n("
        + string(b"u1")
        + b"K\0K\1tR(K\3"
        + string(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    array += b"\x89" + string(images.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = string(b"data") + array + string(b"fine_labels") + numbers + string(b"batch_label") + string(b"training")
    return b"\x80\x02}(" + entries + b"u."


def make(folder: Path, *, packed: bool, train: bytes | None = None) -> Path:
    parts = {"train": python2(IMAGES, LABELS) if train is None else train, "test": python2(IMAGES[:5], LABELS[:5])}
    if not packed:
        (folder / "cifar-100-python").mkdir(exist_ok=True)
        for name, data in parts.items():
            (folder / "cifar-100-python" / name).write_bytes(data)
        return folder / "cifar-100-python"
    with tarfile.open(folder / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name, data in parts.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return folder / "cifar-100-python.tar.gz"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lockstep"


@pytest.mark.parametrize("packed", [True, False])
def test_folder_archive_or_the_folder_around_either(tmp_path: Path, packed: bool) -> None:
    path = make(tmp_path, packed=packed)
    for place in (path, tmp_path):
        images = open_images(place, "train")
        assert len(images) == ROWS
        assert torch.equal(images.stored[3][0], torch.from_numpy(IMAGES[3].reshape(3, 32, 32)))
        assert [int(images[i][1]) for i in range(ROWS)] == LABELS
    assert len(open_images(path, "test")) == 5
    batch, labels = images.gather([3, 1])
    assert torch.equal(batch[1], images[1][0])
    assert labels.tolist() == [LABELS[3], LABELS[1]]
    assert abs(float(batch.mean())) < 0.5


def test_the_real_form_is_what_python_2_wrote() -> None:
    loaded = pickle.loads(python2(IMAGES, LABELS).replace(b"numpy.core", b"numpy._core"), encoding="bytes")
    assert np.array_equal(loaded[b"data"], IMAGES)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_written_by_a_later_python(tmp_path: Path, protocol: int) -> None:
    again = pickle.dumps({b"data": IMAGES, b"fine_labels": LABELS}, protocol)
    images, labels = read(make(tmp_path, packed=False, train=again), "train")
    assert np.array_equal(images.reshape(ROWS, -1), IMAGES)
    assert labels == LABELS


def test_kept_as_a_file_that_all_ranks_map(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path, packed=True)
    open_images(path, "train")
    kept = list(cache.iterdir())
    assert len(kept) == 1
    with monkeypatch.context() as patched:
        patched.setattr(cifar100_archive, "read", lambda *_: pytest.fail("it was read again"))
        assert len(open_images(path, "train")) == ROWS
    os.truncate(kept[0], 300)
    assert len(open_images(path, "train")) == ROWS, "a damaged copy is made again"
    os.utime(path, ns=(1, 1))
    open_images(path, "train")
    assert len(list(cache.iterdir())) == 2, "another archive has another copy"


def test_nowhere_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(open_images(make(tmp_path, packed=True), "train")) == ROWS


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (b"cos\nsystem\n(S'false'\ntR.", "contains os.system, which CIFAR-100 does not need"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "contains builtins.eval"),
        (b"cnumpy\nsave\n.", "contains numpy.save"),
        (b"not a pickle", "cannot be read"),
        (python2(IMAGES, LABELS)[:5000], "cannot be read"),
        (b"", "cannot be read"),
        (pickle.dumps([1, 2]), "is not CIFAR-100: it has no data and fine_labels"),
        (python2(IMAGES[:, :3000], LABELS), "its images are not rows of 3072 bytes"),
        (python2(IMAGES, LABELS[:-1]), "12 images, but not one label for each"),
        (python2(IMAGES, [*LABELS[:-1], 100]), "a label is not a number from 0 to 99"),
        (pickle.dumps({b"data": IMAGES.astype(np.float32), b"fine_labels": LABELS}, 2), "not rows of 3072 bytes"),
        (pickle.dumps({b"data": b"x", b"fine_labels": LABELS}, 2), "not rows of 3072 bytes"),
    ],
)
def test_refused(tmp_path: Path, train: bytes, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        open_images(make(tmp_path, packed=False, train=train), "train")


def test_not_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(BadInput, match=r"no CIFAR-100 at .*cifar-100-python\.tar\.gz .*University of Toronto"):
            open_images(path, "train")
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    with pytest.raises(BadInput, match="has no cifar-100-python/train"):
        open_images(tmp_path / "empty.tar.gz", "train")


def test_an_archive_that_was_cut_off(tmp_path: Path) -> None:
    path = make(tmp_path, packed=True)
    os.truncate(path, 9000)
    with pytest.raises(BadInput, match="cannot read train from"):
        open_images(path, "train")


def test_the_recipe_takes_it(tmp_path: Path) -> None:
    path = make(tmp_path, packed=True)
    recipe = load("cifar100", str(path))
    assert len(recipe.dataset()) == ROWS
    assert len(recipe.eval_dataset()) == 5
    assert len(load("cifar100").dataset()) == 3200
    with pytest.raises(BadInput, match=r"mlp does not accept --data: its recipe\(\) has no parameter `data`"):
        load("mlp", "somewhere")
