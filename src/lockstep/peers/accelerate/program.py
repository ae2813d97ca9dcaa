"""`accelerate`: the recipe in a loop with Hugging Face Accelerate, started by torchrun."""

from __future__ import annotations

import itertools
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs  # type: ignore[import-untyped]
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from torch.nn.parallel import DistributedDataParallel

from lockstep.peers.base import PeerRun, main
from lockstep.strategies.ddp_timer import DDPTimer

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler


def train(run: PeerRun) -> None:
    """Prepare model, optimizer and loader, and go over the batches as Accelerate's guide does."""
    on_cpu = run.spec.device == "cpu" or not torch.accelerator.is_available()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    accelerator = Accelerator(
        cpu=on_cpu,
        gradient_accumulation_steps=run.accumulation,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    set_seed(run.recipe.seed)
    plain = run.make_model()
    stock = run.recipe.optimizer(plain.parameters())
    # Not prepared: Accelerate would advance it once per process, and here it advances once a step.
    schedule = run.recipe.schedule(stock) if run.recipe.schedule else None
    model, optimizer, loader = accelerator.prepare(plain, stock, run.loader())
    run.joined(rank=accelerator.process_index, size=accelerator.num_processes, device=str(accelerator.device))
    model.train()
    run.begin()
    _loop(run, accelerator, (model, optimizer, loader), schedule)
    run.finish(accelerator.unwrap_model(model), stock)
    accelerator.end_training()


def _loop(run: PeerRun, accelerator: Accelerator, prepared: tuple[Any, Any, Any], schedule: LRScheduler | None) -> None:
    model, optimizer, loader = prepared
    timer = DDPTimer(model) if isinstance(model, DistributedDataParallel) else None
    plain, steps = accelerator.unwrap_model(model), 0
    for epoch in itertools.count():
        for batch in loader:
            run.clock.lap("data")
            with accelerator.accumulate(model):
                loss = run.loss(model, batch)
                run.clock.lap("forward")
                accelerator.backward(loss)
                run.clock.lap("backward")
                if timer is not None and accelerator.sync_gradients:
                    timer.divide(run.clock)
                if run.recipe.clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), run.recipe.clip)
                optimizer.step()
                if schedule is not None and accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()
            run.clock.lap("optimizer")
            if accelerator.sync_gradients:
                run.step_done(epoch, plain, timer)
                steps += 1
                if steps == run.plan.steps:
                    return


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(train)
