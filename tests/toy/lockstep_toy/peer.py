"""A peer in the fewest lines: its own group, loader and loop, around the records that Lockstep keeps."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from lockstep.peers.base import Batches, PeerRun, as_it_is, main
from lockstep.strategies.base import backward
from lockstep.strategies.ddp_timer import DDPTimer


def train(run: PeerRun) -> None:
    """Train for as many steps as the plan has, on one batch of each rank at a time."""
    dist.init_process_group("gloo")
    torch.set_num_threads(run.spec.threads or 1)
    plain = run.make_model()
    model = DistributedDataParallel(plain)
    optimizer = run.recipe.optimizer(plain.parameters())
    data = Batches(run.source)
    batch = run.recipe.global_batch // run.spec.workers
    loader = DataLoader(data, batch, sampler=DistributedSampler(data), collate_fn=as_it_is)
    run.joined(rank=dist.get_rank(), size=dist.get_world_size(), device="cpu")
    timer = DDPTimer(model)
    run.begin()
    for step, batch in zip(range(run.plan.steps), loader, strict=False):
        run.clock.lap("data")
        loss = run.loss(model, batch)
        run.clock.lap("forward")
        backward(loss)
        run.clock.lap("backward")
        timer.divide(run.clock)
        optimizer.step()
        optimizer.zero_grad()
        run.clock.lap("optimizer")
        run.step_done(step // run.epoch_steps, plain, timer)
    run.finish(plain, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(train)
