"""A stock training loop in which one import line changed: `lockstep launch --workers 2 examples/stock_ddp.py`.

Also under torchrun: `torchrun --nproc-per-node 2 examples/stock_ddp.py`. With "shm" in place of "gloo" the ranks of one
host exchange gradients through shared memory.
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lockstep.nn import DistributedDataParallel  # was: from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fit a line, with gradient accumulation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--grad-accum-steps", type=int, default=4)
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    torch.manual_seed(dist.get_rank())  # the ranks start from different weights: rank 0's win

    inputs = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(options.num_epochs):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, start=1):
            last = number % options.grad_accum_steps == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(x), y)
                torch.autograd.backward(loss / options.grad_accum_steps)
            if last:
                optimizer.step()
                optimizer.zero_grad()
    weights = sum(float(p.detach().double().sum()) for p in model.parameters())
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f}, weights {weights:.12f}", flush=True
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
