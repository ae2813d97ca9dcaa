"""Fingerprints of the weights at a few steps, so that two runs can be told apart: at which step, in which tensor.

prints.jsonl   {"step": 4, "parameters": {NAME: [HASH, MEAN, NORM]}, "buffers": {NAME: [HASH, MEAN, NORM]}}

HASH is the first 8 bytes of SHA-256 over the tensor's bytes, in hex. Above LARGE bytes only the hash is taken.
"""

from __future__ import annotations

import hashlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lockstep.train.records import Lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from lockstep.world.place import World

LARGE = 64 << 20
"""Bytes of parameters above which means and norms are left out: they would take longer than the hash."""

Print = list[str | float | None]


def is_print_step(step: int, steps: int) -> bool:
    """Say whether the weights are printed after a step: 0, the powers of two, and the last."""
    return step & (step - 1) == 0 or step == steps - 1


class Prints:
    """Rank 0's file of fingerprints."""

    def __init__(self, folder: Path) -> None:
        self._lines = Lines(folder / "prints.jsonl")

    def write(self, step: int, model: nn.Module) -> None:
        """Take the fingerprints of a model after a step."""
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        self._lines.write(
            {
                "step": step,
                "parameters": fingerprints(model.named_parameters(), numbers=size <= LARGE),
                "buffers": fingerprints(model.named_buffers(), numbers=size <= LARGE),
            }
        )

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


class Pauses:
    """Looks at the weights between two steps; all ranks stand still meanwhile, and it counts as no step's time."""

    def __init__(self, folder: Path, world: World, steps: int) -> None:
        self._several, self._steps = world.size > 1, steps
        self._prints = Prints(folder) if world.rank == 0 else None
        self.seconds = 0.0

    def after(self, step: int, model: nn.Module) -> None:
        """Take the fingerprints if this step is one of those."""
        if not is_print_step(step, self._steps):
            return
        began = time.perf_counter()
        if self._prints is not None:
            self._prints.write(step, model)
            if step == self._steps - 1:
                self._prints.close()
        if self._several:
            dist.barrier()
        self.seconds += time.perf_counter() - began


def fingerprints(tensors: Iterable[tuple[str, Tensor]], *, numbers: bool = True) -> dict[str, Print]:
    """Return hash, mean and norm of each tensor; a mean or norm that is no number, or not wanted, is None."""
    return {name: _print(tensor.detach().to("cpu").contiguous(), numbers) for name, tensor in tensors}


def _print(tensor: Tensor, numbers: bool) -> Print:
    found = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()[:16]
    if not numbers or tensor.numel() == 0:
        return [found, None, None]
    values = tensor if tensor.is_floating_point() else tensor.double()
    both = (float(values.mean()), float(torch.linalg.vector_norm(values)))
    return [found, *(value if math.isfinite(value) else None for value in both)]
