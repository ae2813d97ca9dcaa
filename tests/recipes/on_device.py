"""Recipes that go wrong on a device, each in a named way."""

from dataclasses import replace
from typing import Any

import tiny  # the folder of a recipe is on the path
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep import Recipe


def _with(loss: object) -> Recipe:
    return replace(tiny.recipe(), loss=loss)  # type: ignore[arg-type]


def too_large() -> Recipe:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return tiny.loss(model, batch) + torch.empty(1 << 40, dtype=torch.uint8, device=batch[0].device).sum()

    return _with(loss)


def lost() -> Recipe:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        import pretend_device

        if dist.get_rank() == 1:
            pretend_device.lose(1)
        return tiny.loss(model, batch)

    return _with(loss)


def elsewhere() -> Recipe:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        total: Tensor = (model(batch[0]) * torch.ones(batch[0].shape[0], 4)).sum()
        return total

    return _with(loss)


def no_kernel() -> Recipe:
    library: Any = torch.library.Library("no_kernel_for", "DEF")  # type: ignore[no-untyped-call]
    library.define("it(Tensor x) -> Tensor")
    library.impl("it", lambda x: x.clone(), "CPU")

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        torch.ops.no_kernel_for.it(batch[0])
        assert library is not None
        return tiny.loss(model, batch)

    return _with(loss)


def no_such_precision() -> Recipe:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        with torch.autocast(batch[0].device.type, dtype=torch.float16):
            return tiny.loss(model, batch)

    return _with(loss)


def not_deterministic() -> Recipe:
    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        spread = torch.histc(batch[0], 4)
        return F.cross_entropy(model(batch[0]) + spread, batch[1])

    return _with(loss)
