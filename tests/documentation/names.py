"""What a page's code may take for granted: a model, data, a loss and an optimizer of the reader's own."""

from collections.abc import Iterable
from pathlib import Path  # noqa: F401

import torch
import torch.distributed as dist  # noqa: F401
from torch import nn
from torch.nn.parallel import DistributedDataParallel  # noqa: F401
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

import lockstep  # noqa: F401
from lockstep import Recipe  # noqa: F401
from lockstep.comm.arena import Arena, owned_slice  # noqa: F401
from lockstep.data import Ragged

inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
dataset = validation_set = eval_dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = DataLoader(dataset, batch_size=64)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def my_metrics(model: nn.Module, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"error": loss(model, batch)}


def optimizer(parameters: Iterable[nn.Parameter]) -> AdamW:
    return AdamW(parameters, lr=3e-4)


tensors = items = texts = [torch.arange(length) for length in range(1, 13)]
mask = torch.arange(12) % 2 == 0
other = Ragged(tensors)
n, nbytes = 64, 1 << 20
total = torch.zeros(n)
model = Net
net = Net()
fields = {"model": Net, "data": dataset, "loss": loss, "optimizer": optimizer, "global_batch": 64}
