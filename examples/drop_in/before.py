"""A stock training loop: `torchrun --nproc-per-node 2 before.py`. The files beside it change a line or two."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Tell points of two kinds apart."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    points = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(points, (points[:, 0] > points[:, 1]).long())
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    net: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f} on {dist.get_world_size()} workers")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
