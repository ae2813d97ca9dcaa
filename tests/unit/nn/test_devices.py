"""On other devices than the CPU vectors are tensors: the same arithmetic, tried here with a peer that is this rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.nn import batchnorm_math, workspace
from tests.unit.nn.echo import echoing


def results(shape: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer = echoing(shape[1])
    x = torch.randn(shape, generator=generator, requires_grad=True)
    y = layer(x)
    gradients = torch.autograd.grad(y, (x, *layer.parameters()), torch.randn(shape, generator=generator))
    return [y.detach(), *gradients, layer.running_mean, layer.running_var]


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5)], ids=str)
def test_tensors_give_what_arrays_give(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = results(shape)
    for module in (batchnorm_math, workspace):
        monkeypatch.setattr(module, "vector_of", lambda tensor: tensor.detach())
    monkeypatch.setattr(workspace, "numpy", torch)
    torch.testing.assert_close(results(shape), expected, rtol=1e-6, atol=1e-6)
