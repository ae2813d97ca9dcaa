"""SyncBatchNorm keeps arrays of its weights and running statistics: they follow what users do to these tensors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.nn.echo import echoing


def step(layer: Any, seed: int, factor: float = 1.0) -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)).to(layer.weight.dtype).requires_grad_()
    torch.autograd.backward(layer(x * factor).square().sum())


def replace(layer: Any) -> Any:
    layer.running_mean = torch.full((3,), 0.5)
    layer.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    return layer


def move(layer: Any) -> Any:
    layer.running_var.data = torch.full((3,), 2.0)
    layer.weight.data = torch.tensor([3.0, 2.0, 1.0])
    return layer


def assign(layer: Any) -> Any:
    state = {name: tensor + 1 for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)
    return layer


CHANGES: list[Callable[[Any], Any]] = [replace, move, assign, lambda layer: layer.double(), copy.deepcopy]


@pytest.mark.parametrize("change", CHANGES, ids=["replace", "move", "assign", "double", "deepcopy"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_as_batchnorm_does_after_a_change(change: Callable[[Any], Any], momentum: float | None) -> None:
    """The other rank has the same samples, so mean, gradients and counts are those of a local BatchNorm."""
    ours, stock = echoing(3, momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    for layer in (ours, stock):
        step(layer, 0)
    ours, stock = change(ours), change(stock)
    if change is copy.deepcopy:
        again = echoing(3)
        ours.group, ours._rows = again.group, again._rows
    for layer in (ours, stock):
        layer.zero_grad()
        step(layer, 1)
    names = ("running_mean", "num_batches_tracked", "weight", "bias")
    for name in names:
        torch.testing.assert_close(getattr(ours, name), getattr(stock, name))
    for name in ("weight", "bias"):
        torch.testing.assert_close(getattr(ours, name).grad, getattr(stock, name).grad)


def test_half_precision_statistics_are_tracked() -> None:
    layer = echoing(3).bfloat16()
    step(layer, 0)
    assert layer.running_mean.dtype == torch.bfloat16
    assert layer.running_mean.abs().sum() > 0
    assert layer.num_batches_tracked == 1


def test_autograd_notices_that_running_statistics_changed() -> None:
    """A graph from evaluation mode needs the statistics as they were."""
    layer = echoing(3)
    layer.eval()
    layer._agreed = True
    x = torch.randn(6, 3, requires_grad=True)
    y = layer(x)
    layer.train()
    step(layer, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(y.sum())


def test_an_overflow_warns_no_more_than_in_batchnorm() -> None:
    layer = echoing(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(layer, 0, factor=3e38)
    assert not torch.isfinite(layer.running_var).all()
