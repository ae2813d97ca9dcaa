"""Ranks that would train on different data, or begin with different weights, are noticed before the first step.

Every rank describes what it has in a few words and checksums (its marks), all ranks get all marks, and each compares
them with rank 0's. It is cheap: of a dataset a few samples are read, of a tensor the first 64 KiB.
"""

from __future__ import annotations

import itertools
import json
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.comm.broadcast import all_gather_text
from lockstep.data.augment import SampleSeeds, generators_restored
from lockstep.data.source import read_stream
from lockstep.errors import LockstepError
from lockstep.state.table import dtype_name

if TYPE_CHECKING:
    from torch import nn

    from lockstep.comm.group import Group
    from lockstep.data.source import Source

STREAM_SAMPLES = 2
"""How many samples of a stream are compared."""
BYTES = 1 << 16
"""How much of a tensor is compared."""
PARAMETER = "parameter "
Marks = dict[str, str]
"""What a rank has, by what it is."""


def model_marks(model: nn.Module) -> Marks:
    """Return a mark of every parameter and buffer, as they are now."""
    tensors = [
        *((f"{PARAMETER}{name}", parameter) for name, parameter in model.named_parameters()),
        *((f"buffer {name}", buffer) for name, buffer in model.named_buffers()),
    ]
    return {name: f"{dtype_name(one.dtype)} {tuple(one.shape)} {_checksum(one):08x}" for name, one in tensors}


def data_marks(source: Source, seed: int) -> Marks:
    """Return how many samples there are, and a mark of some of them: the first ones and, if it is no stream, the last.

    A dataset that cannot be read here says so in training, with the sample's number.
    """
    seeds, dataset, samples = SampleSeeds(seed, 0), source.dataset, source.samples
    marks = {"the number of samples": "unknown" if samples is None else str(samples)}
    try:
        if source.stream:
            for number, item in enumerate(itertools.islice(read_stream(dataset, seeds), STREAM_SAMPLES)):
                marks[f"sample {number}"] = f"{_checksum(item):08x}"
        else:
            for number in sorted({0, 1, (samples or 1) - 1} & set(range(samples or 0))):
                with generators_restored():
                    seeds.seed_process(number)
                    marks[f"sample {number}"] = f"{_checksum(dataset[number]):08x}"
    except Exception as error:
        marks["reading it"] = type(error).__name__
    return marks


def check_same_model(group: Group, model: nn.Module, settings: Mapping[str, int], *, passed: bool) -> None:
    """Refuse ranks that would begin differently; all ranks call this together.

    Every strategy begins with rank 0's parameters. So other parameters in a module that was passed, and not made here
    after the seed was set, are no more than a warning.
    """
    marks = {**{name: str(value) for name, value in settings.items()}, **model_marks(model)}
    difference = first_difference(_gather_marks(group, marks))
    if difference is None:
        return
    if passed and all(name.startswith(PARAMETER) for name in difference.names):
        if group.rank == 0:
            warnings.warn(f"the ranks' models differ, and rank 0's weights are used: {difference.text}", stacklevel=3)
        return
    raise LockstepError(
        f"the ranks would begin differently: {difference.text}. All ranks need the same seed, lanes and weights: draw "
        "weights with torch's own generator, which is seeded before the model is made, or load them from one file"
    )


def check_same_data(group: Group, marks: Marks) -> None:
    """Refuse ranks that have different data; all ranks call this together."""
    difference = first_difference(_gather_marks(group, marks))
    if difference is not None:
        raise LockstepError(
            f"the ranks have different training data: {difference.text}. All ranks need the same data: make it after "
            "torch.manual_seed(...), or read it from one file, and do not divide it by rank"
        )


class Difference(NamedTuple):
    """In what a rank differs from rank 0."""

    text: str
    """Which rank, in what, and both values."""
    names: list[str]
    """In what, all of it, over all ranks."""


def first_difference(ranks: Sequence[Marks]) -> Difference | None:
    """Return in what the first rank that differs from rank 0 does; None if none differs."""
    first = ranks[0]
    by_rank = {
        rank: [name for name in dict.fromkeys((*first, *marks)) if first.get(name) != marks.get(name)]
        for rank, marks in enumerate(ranks)
        if marks != first
    }
    if not by_rank:
        return None
    rank, names = next(iter(by_rank.items()))
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    others = [str(other) for other in by_rank if other != rank]
    also = f"; other ranks that differ: {', '.join(others)}" if others else ""
    both = f"{first.get(names[0], 'absent')} on rank 0, {ranks[rank].get(names[0], 'absent')} on rank {rank}"
    text = f"rank {rank} differs from rank 0 in {names[0]}{more}: {both}{also}"
    return Difference(text, [name for one in by_rank.values() for name in one])


def _gather_marks(group: Group, marks: Marks) -> list[Marks]:
    return [json.loads(text) for text in all_gather_text(json.dumps(marks), group)]


def _checksum(value: Any, before: int = 0) -> int:
    """Return a checksum of the contents of a sample or a tensor; objects of unknown kinds count by their type."""
    if isinstance(value, Tensor):
        if value.is_sparse or value.is_nested or value.is_quantized or value.is_meta:
            return zlib.crc32(str(type(value)).encode(), before)
        flat = value.detach().flatten()[: BYTES // max(1, value.element_size())].cpu().contiguous()
        return zlib.crc32(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"", before)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return _checksum(value.tolist(), before)
        return zlib.crc32(value.reshape(-1)[: BYTES // max(1, value.itemsize)].tobytes(), before)
    if isinstance(value, (str, bytes)):
        return zlib.crc32(value.encode(errors="replace") if isinstance(value, str) else value, before)
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple)):
        for part in value:
            before = _checksum(part, before)
        return before
    plain = value is None or isinstance(value, (bool, int, float, complex))
    return zlib.crc32(repr(value).encode() if plain else type(value).__qualname__.encode(), before)
