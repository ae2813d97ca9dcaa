"""The checkpoint file: the training state as safetensors, parameters and buffers under the plain model's names.

    in the state              in the file
    parameter/0.weight        0.weight
    buffer/1.running_mean     1.running_mean             and the name is in the list `buffers` of the metadata
    optimizer/0.weight/step   optimizer/0.weight/step

What goes in and comes out here has the names of the state; what others read has those of the file.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.train.records import CannotWrite
from lockstep.train.tensor_file import Damaged, TensorDraft, TensorFile

KIND = "checkpoint"
OPTIMIZER = "optimizer/"


class Draft(TensorDraft):
    """A checkpoint that is being written; it is in place after `finish`, and gone without it."""

    def __init__(
        self, path: Path, header: Mapping[str, Any], entries: Sequence[tuple[str, str, tuple[int, ...]]]
    ) -> None:
        buffers = [stored_name(name) for name, _, _ in entries if name.startswith("buffer/")]
        stored = [(stored_name(name), dtype, shape) for name, dtype, shape in entries]
        super().__init__(path, KIND, {**header, "buffers": buffers}, stored)

    def add(self, name: str, data: memoryview | bytes | bytearray) -> None:
        """Write the next bytes of a tensor, by its name in the state; tensors come in any order, whole or in pieces."""
        super().add(stored_name(name), data)

    def cannot_write(self, error: OSError) -> CannotWrite:
        """Return the error for a checkpoint that the system would not let us write."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return CannotWrite(
            f"cannot write the checkpoint {self.path}: {error.strerror or error}. What was written before it is "
            f"whole: {'make room' if full else 'fix the cause'}, and go on from there"
        )


class Saved(TensorFile):
    """A checkpoint that was checked; a context manager that closes its file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, KIND)
        buffers = self.content.pop("buffers", None)
        stored = set(self.tensors)
        if not isinstance(buffers, list) or not all(isinstance(name, str) and name in stored for name in buffers):
            self.close()
            raise Damaged(f"{path} has a header that cannot be read: it does not say which tensors are buffers")
        kinds = {**dict.fromkeys(stored, "parameter/"), **dict.fromkeys(buffers, "buffer/")}
        named = {name: name if name.startswith(OPTIMIZER) else kinds[name] + name for name in self.tensors}
        self.tensors = {named[name]: replace(one, name=named[name]) for name, one in self.tensors.items()}
        """By the names of the state, in its order."""

    @property
    def header(self) -> dict[str, Any]:
        """What it says of itself."""
        return self.content


def stored_name(name: str) -> str:
    """Return the name in the file of a tensor of the state."""
    if name.startswith(OPTIMIZER):
        return name
    plain = name.partition("/")[2]
    if plain.startswith(OPTIMIZER):
        raise BadInput(f"{plain} is a name that a checkpoint keeps for the optimizer's state: give it another name")
    return plain
