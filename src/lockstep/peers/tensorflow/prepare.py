"""What TensorFlow's ranks cannot make, written by a process that has torch, as plain arrays of numpy.

    weights.npz    the initial state of the plain model, under its names
    train-*.npy    the training data, a file for each part of a sample; eval-*.npy the same for evaluation
    masks.npy      the bits of dropout, of every step: which inputs of the layer stay, in the order of the batch
    settings.json  the optimizer's numbers

The order of samples is a function of seed and epoch that needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from lockstep.data.source import fetch, open_source
from lockstep.errors import BadInput
from lockstep.lanes.rng import lane_seed
from lockstep.lanes.schedule import lane_samples
from lockstep.lanes.schedule import steps_per_epoch as epoch_steps

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.recipe import Plan, Recipe

CHUNK = 512
"""Samples that are read at once."""


def prepare(folder: Path, recipe: Recipe, plan: Plan) -> None:
    """Write all of it."""
    torch.manual_seed(recipe.seed)
    model = recipe.model()
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    np.savez(folder / "weights.npz", **state)
    samples = _write_samples(folder, "train", recipe.dataset(), recipe)
    _write_samples(folder, "eval", recipe.eval_dataset(), recipe)
    _write_masks(folder / "masks.npy", _dropout(model), recipe, samples, plan)
    settings = _optimizer_settings(recipe.optimizer(model.parameters()))
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")


def _write_samples(folder: Path, name: str, data: Any, recipe: Recipe) -> int:
    """Write a dataset chunk by chunk; return how many samples it has."""
    source = open_source(data, recipe.collate)
    samples = len(source.dataset)
    files: list[Any] = []
    for start in range(0, samples, CHUNK):
        chosen = list(range(start, min(samples, start + CHUNK)))
        parts = [part.numpy() for part in fetch(source.dataset, chosen, source.collate)]
        for number, part in enumerate(parts):
            if start == 0:
                path = folder / f"{name}-{number}.npy"
                files.append(np.lib.format.open_memmap(path, "w+", part.dtype, (samples, *part.shape[1:])))
            files[number][start : start + len(part)] = part
    for file in files:
        file.flush()
    return samples


def _dropout(model: nn.Module) -> tuple[int, float] | None:
    """Return how many inputs the only Dropout of a chain of layers has, and its rate; None if there is none."""
    width = 0
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            width = layer.out_features
        elif isinstance(layer, nn.Dropout) and layer.p:
            return width, layer.p
    return None


def _write_masks(path: Path, dropout: tuple[int, float] | None, recipe: Recipe, samples: int, plan: Plan) -> None:
    """Draw what dropout would draw in torch: the stream of a lane begins at (seed, step, lane)."""
    if dropout is None:
        return
    width, rate = dropout
    row = -(-recipe.global_batch * width // 8)
    masks = np.lib.format.open_memmap(path, "w+", np.uint8, (plan.steps, row))
    before = torch.get_rng_state()
    for step, sizes in zip(range(plan.steps), _lane_sizes(samples, recipe, plan), strict=False):
        kept = []
        for lane, size in enumerate(sizes):
            torch.default_generator.manual_seed(lane_seed(recipe.seed, step, lane))
            kept.append(F.dropout(torch.ones(size, width), rate, training=True) != 0)
        bits = np.packbits(torch.cat(kept).numpy().reshape(-1))
        masks[step, : len(bits)] = bits
    torch.set_rng_state(before)
    masks.flush()


def _lane_sizes(samples: int, recipe: Recipe, plan: Plan) -> Iterator[Sequence[int]]:
    """Yield how many samples each lane has, step by step."""
    steps = epoch_steps(samples, recipe.global_batch)
    for step in range(plan.steps):
        first = (step % steps) * recipe.global_batch
        count = min(recipe.global_batch, samples - first)
        yield [len(lane_samples(count, plan.lanes, lane)) for lane in range(plan.lanes)]


def _optimizer_settings(optimizer: Optimizer) -> dict[str, Any]:
    """Return the numbers of an optimizer that has a twin."""
    (group,) = optimizer.param_groups
    if type(optimizer) is AdamW and not group["amsgrad"] and not group["maximize"]:
        return {"kind": "AdamW", **{name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}}
    if type(optimizer) is SGD and not group["dampening"] and not group["maximize"]:
        return {"kind": "SGD", **{name: group[name] for name in ("lr", "momentum", "nesterov", "weight_decay")}}
    raise BadInput(f"strategy tensorflow has no twin of this {type(optimizer).__name__}: AdamW and SGD have one")
