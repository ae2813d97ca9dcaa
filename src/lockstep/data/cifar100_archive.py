"""CIFAR-100 from its standard Python archive, read by an unpickler that can make only plain values and arrays."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.data.ragged import Ragged
from lockstep.errors import BadInput

FOLDER = "cifar-100-python"
ARCHIVE = f"{FOLDER}.tar.gz"
CLASSES, SHAPE = 100, (3, 32, 32)
MEAN, SPREAD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
WHERE = (
    f"give --data the folder {FOLDER} or the file {ARCHIVE} (the CIFAR-100 python version, from the CIFAR page of the "
    "University of Toronto); without --data, generated images are used"
)


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images of one part of CIFAR-100, stored as bytes and normalised as they are read."""

    def __init__(self, stored: Ragged) -> None:
        self.stored = stored
        self._mean = torch.tensor(MEAN).view(3, 1, 1) * 255
        self._spread = torch.tensor(SPREAD).view(3, 1, 1) * 255

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.stored[index]
        return (image.float() - self._mean) / self._spread, label

    def gather(self, indices: Any) -> list[Tensor]:
        """Return a batch of images and labels."""
        images, labels = self.stored.gather(indices)
        return [(images.float() - self._mean) / self._spread, labels]


def open_images(path: str | os.PathLike[str], part: str) -> Images:
    """Return the `train` or the `test` images of an archive.

    The first call writes them as a Ragged to the user's cache folder; later calls, and all ranks of a host, map
    that file. If it cannot be written, each process holds the images itself.
    """
    source = _find(Path(path))
    file = _cache(source, part)
    if file.is_file():
        try:
            return Images(Ragged.open(file))
        except BadInput:  # cut off, or of another version: it is only a cached copy
            file.unlink(missing_ok=True)
    images, labels = read(source, part)
    items = zip(torch.from_numpy(images), labels, strict=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return Images(Ragged.write(file, items))
    except (OSError, BadInput):
        return Images(Ragged(zip(torch.from_numpy(images), labels, strict=True)))


def read(source: Path, part: str) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Read and check one part: images as bytes, labels from 0 to 99."""
    where = f"{part} of {source}"
    content = _unpickle(_bytes(source, part), where)
    if not isinstance(content, dict) or not {b"data", b"fine_labels"} <= set(content):
        raise BadInput(f"{where} is not CIFAR-100: it has no data and fine_labels; {WHERE}")
    data, labels = content[b"data"], content[b"fine_labels"]
    images = data.array() if isinstance(data, _PickledArray) else None
    if images is None or images.ndim != 2 or images.shape[1] != 3072 or not len(images):
        raise BadInput(f"{where} is damaged: its images are not rows of 3072 bytes; download the archive again")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise BadInput(
            f"{where} is damaged: it has {len(images)} images, but not one label for each; download the archive again"
        )
    if not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise BadInput(f"{where} is damaged: a label is not a number from 0 to 99; download the archive again")
    return images.reshape(-1, *SHAPE), labels


def _find(path: Path) -> Path:
    """Return the archive, or the folder that has the parts."""
    for candidate in (path, path / FOLDER, path / ARCHIVE):
        if candidate.is_file() or (candidate / "train").is_file():
            return candidate
    reason = "the path does not exist" if not path.exists() else "it has no such folder or file"
    raise BadInput(f"no CIFAR-100 at {path} ({reason}): {WHERE}")


def _bytes(source: Path, part: str) -> bytes:
    try:
        if source.is_dir():
            return (source / part).read_bytes()
        with tarfile.open(source, "r:*") as archive:
            member = archive.extractfile(f"{FOLDER}/{part}")
            if member is None:
                raise KeyError(part)
            return member.read()
    except KeyError as error:
        raise BadInput(f"{source} has no {FOLDER}/{part}: {WHERE}") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise BadInput(f"cannot read {part} from {source}: {error}; download the archive again") from error


def _cache(source: Path, part: str) -> Path:
    """Return the cache file of a converted part; its name changes when the source changes."""
    stat = (source / part if source.is_dir() else source).stat()
    key = hashlib.sha256(f"{source.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "lockstep" / f"cifar100-{part}-{key}.ragged"


class _PickledArray:
    """The state of a pickled array (shape, dtype and bytes), from which we make the array ourselves."""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.kind, self.by_columns, self.data = state

    def array(self) -> np.ndarray[Any, Any] | None:
        """Return the array, or None if it is not an array of bytes."""
        if not isinstance(self.kind, _PickledDtype) or self.kind.name not in (b"u1", "u1") or self.by_columns:
            return None
        flat = np.frombuffer(self.data, dtype=np.uint8)
        return flat.reshape(self.shape).copy() if flat.size == int(np.prod(self.shape)) else None


class _PickledDtype:
    """A pickled dtype."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and the like: bytes have none."""


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


_KNOWN = {
    "numpy.ndarray": _PickledArray,
    "numpy.dtype": _PickledDtype,
    "numpy.core.multiarray._reconstruct": lambda *_: _PickledArray(),
    "numpy._core.multiarray._reconstruct": lambda *_: _PickledArray(),
    "_codecs.encode": _encode,  # how a later Python writes the bytes of an earlier one
}


class _Unpickler(pickle.Unpickler):
    """Makes dicts, lists, numbers, bytes and arrays; any other name in the file is an error and is not imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Return our own substitute for one of the few names that the archive needs."""
        try:
            return _KNOWN[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which CIFAR-100 does not need") from None


def _unpickle(data: bytes, where: str) -> Any:
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:
        raise BadInput(
            f"{where} cannot be read: {error or type(error).__name__}; download the archive again"
        ) from error
