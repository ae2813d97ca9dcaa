"""Weights files: parameters and persistent buffers under the names of the plain model's `state_dict`.

A tensor that has several names there (tied weights) is written under each of them, so that
`model.load_state_dict(load_file(path))` finds all it asks for; `tied` in the metadata says which are the same. No torch
is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.train.tensor_file import TensorDraft

NAME = "final.safetensors"
"""Of the file in a run folder."""
BEST = "best.safetensors"
"""Of the file with the weights of the best evaluation."""
KIND = "weights"


class WeightsDraft(TensorDraft):
    """A weights file that is being written; it is in place after `finish`, and gone without it.

    `names` maps the names of the `state_dict` to those of the tensors that will come; `table` has the tensors' names,
    dtypes and shapes. A tensor without a name in the `state_dict` may come, and is left out.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        names: Mapping[str, str],
        table: Sequence[tuple[str, str, tuple[int, ...]]],
    ) -> None:
        kinds = {name: (dtype, shape) for name, dtype, shape in table}
        self._plain: dict[str, list[str]] = {}
        for plain, name in names.items():
            self._plain.setdefault(name, []).append(plain)
        tied = {other: first for first, *others in self._plain.values() for other in others}
        entries = [(plain, *kinds[name]) for plain, name in names.items()]
        super().__init__(path, KIND, {**about, "tied": tied}, entries)

    def add(self, name: str, data: memoryview | bytes | bytearray) -> None:
        """Write the next bytes of a tensor, under each of its names."""
        for plain in self._plain.get(name, ()):
            super().add(plain, data)
