"""Stock scripts, run under torchrun: Lightning and Accelerate told to use shm, and gloo beside it."""

from __future__ import annotations

import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import lockstep  # noqa: F401 - registers shm

warnings.simplefilter("ignore")


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    """Thirty-two pairs that a line fits."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.sum(0, keepdim=True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def with_lightning(backend: str) -> nn.Module:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, _: int) -> Tensor:
            x, y = batch
            return nn.functional.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend, timeout=timedelta(seconds=60)),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Numbers(), batch_size=4))
    return module.net


def with_accelerate(backend: str) -> nn.Module:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    # On the CPU Accelerate knows gloo and MPI by name only; a group that is there already, it uses.
    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True)
    model = net()
    wrapped, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.05), DataLoader(Numbers(), batch_size=4)
    )
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(wrapped(x), y))
        optimizer.step()
    accelerator.wait_for_everyone()
    return model


def plain(backend: str) -> nn.Module:
    dist.init_process_group(backend)
    model = net()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    for index in range(dist.get_rank(), 8, 2):
        x, y = Numbers()[index]
        optimizer.zero_grad()
        nn.functional.mse_loss(wrapped(x[None]), y[None]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    client, backend = sys.argv[1:]
    trained = {"lightning": with_lightning, "accelerate": with_accelerate, "plain": plain}[client](backend)
    assert dist.get_backend() == backend, dist.get_backend()
    numbers = [float(p.detach().double().sum()) for p in trained.parameters()]
    if dist.get_rank() == 0:
        print("result", *numbers, flush=True)
    dist.barrier()
    dist.destroy_process_group()
