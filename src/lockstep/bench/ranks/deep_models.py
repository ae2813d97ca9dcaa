"""The models of `lockstep bench pipeline`, each as two equal stages, with batches of one shape per lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim

from lockstep.bench.bench_pipeline import BYTES, MLP, NARROW, SWEPT_BATCH
from lockstep.data import Padded
from lockstep.data.loader import Batch, LaneBatch
from lockstep.recipe import LayerList, Loss
from lockstep.recipes import bytes as bytes_recipe
from lockstep.recipes.bytes import LONGEST, Transformer, TransformerLayer

BLOCKS = 16
SIZES = {MLP: (1024, 64), NARROW: (512, SWEPT_BATCH)}
"""Of an MLP: its width, and the samples of a step. The first has its time in weights, the second in samples."""
QUICK_WIDTH = 128
TRANSFORMER_LAYERS, TEXTS = 8, 16


@dataclass(frozen=True, kw_only=True)
class DeepModel:
    """A model, its loss, and where it is cut in two."""

    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor | Loss]
    samples: Callable[[int], Any]
    """Makes a batch of so many samples; the same every time."""
    global_batch: int
    cut: int
    """The first layer of the second stage."""
    layers: LayerList | None = None
    """As `Recipe(stages=...)`."""

    def lanes(self, count: int) -> tuple[LaneBatch, ...]:
        """Return the lanes of a step."""
        each = self.global_batch // count
        return tuple(LaneBatch(lane, each, self.samples(each)) for lane in range(count))

    def step(self, lanes: Iterable[LaneBatch]) -> Batch:
        """Return a worker's part of a step."""
        return Batch(0, 0, self.global_batch, tuple(lanes))


def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return what all of them are trained with: fused, which is the fastest on either side."""
    return optim.AdamW(parameters, lr=1e-3, fused=True)


def deep_model(name: str, *, quick: bool) -> DeepModel:
    """Return a model by name; the quick form has narrow MLPs, of as many layers."""
    if name == BYTES:
        return DeepModel(
            model=_deep_transformer,
            loss=bytes_recipe.loss,
            samples=_texts,
            global_batch=TEXTS,
            cut=1 + TRANSFORMER_LAYERS // 2,
            layers=lambda model: [model.embed, *model.get_submodule("layers").children(), model.norm, model.head],
        )
    width, samples = SIZES[name]
    width = QUICK_WIDTH if quick else width
    return DeepModel(
        model=lambda: nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(BLOCKS))),
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        samples=lambda count: _points(count, width),
        global_batch=samples,
        cut=BLOCKS,  # of twice as many layers
    )


def _deep_transformer() -> nn.Module:
    """Return the model of `bytes` with four times its layers."""
    model = Transformer()
    model.layers = nn.Sequential(*(TransformerLayer() for _ in range(TRANSFORMER_LAYERS)))
    return model


def _texts(count: int) -> Padded:
    """Return texts of one length: lanes of different lengths torch.distributed.pipelining cannot take."""
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(1, 256, (count, LONGEST), generator=generator)
    return Padded(values, torch.full((count,), LONGEST))


def _points(count: int, width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, width, generator=generator) for _ in range(2)]
