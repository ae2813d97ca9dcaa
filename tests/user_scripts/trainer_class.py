import argparse

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset):
    def __init__(self, count):
        self.pairs = [(torch.rand(20), torch.rand(1)) for _ in range(count)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class Fitter:
    def __init__(self, net, loader, opt, gpu):
        self.gpu = gpu
        self.net = DDP(net.to(gpu), device_ids=[gpu])
        self.loader = loader
        self.opt = opt

    def one_batch(self, points, heights):
        self.opt.zero_grad()
        guess = self.net(points)
        loss = F.mse_loss(guess, heights)
        loss.backward()
        self.opt.step()

    def one_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        for points, heights in self.loader:
            points = points.to(self.gpu)
            heights = heights.to(self.gpu)
            self.one_batch(points, heights)

    def fit_all(self, epochs):
        for epoch in range(epochs):
            self.one_epoch(epoch)


def make_objects():
    net = torch.nn.Linear(20, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    return Points(2048), net, opt


def make_loader(points, size):
    return DataLoader(points, batch_size=size, pin_memory=True, shuffle=False, sampler=DistributedSampler(points))


def work(rank, world, epochs, size):
    init_process_group("nccl", rank=rank, world_size=world)
    points, net, opt = make_objects()
    loader = make_loader(points, size)
    Fitter(net, loader, opt, rank).fit_all(epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int, default=5, nargs="?")
    parser.add_argument("--size", default=32, type=int)
    args = parser.parse_args()
    world = torch.cuda.device_count()
    mp.spawn(work, args=(world, args.epochs, args.size), nprocs=world)
