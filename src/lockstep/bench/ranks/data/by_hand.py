"""The same data in ranks that were started by hand: each is a program of its own and makes the data for itself."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from lockstep.bench.ranks.data.loader_epochs import BATCH, EPOCHS, RATE
from lockstep.bench.ranks.data.sides import make


def main() -> None:
    """Train as `in_lightning` does, as one rank; the ranks meet by a file."""
    side, items, elements, rank, ranks, meet = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    data = make(side, torch.randn(items, elements))
    model = DistributedDataParallel(torch.nn.Linear(elements, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sampler: DistributedSampler[int] = DistributedSampler(data, ranks, rank)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch in DataLoader(data, BATCH, sampler=sampler):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
