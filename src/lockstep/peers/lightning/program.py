"""`lightning`: the recipe in Lightning's Trainer, which starts its own ranks by running this program again."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lockstep.peers.base import PeerRun, main
from lockstep.strategies.ddp_timer import DDPTimer
from lockstep.strategies.torch_ddp.strategy import best_settings


class Module(lightning.LightningModule):
    """A recipe as Lightning wants it."""

    def __init__(self, run: PeerRun) -> None:
        super().__init__()
        self.run = run
        self.net = run.make_model()

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Return the mean loss."""
        return self.run.loss(self.net, batch)

    def configure_optimizers(self) -> Any:
        """Return the recipe's optimizer, and its schedule, which advances once a step."""
        optimizer = self.run.recipe.optimizer(self.net.parameters())
        if self.run.recipe.schedule is None:
            return optimizer
        schedule = {"scheduler": self.run.recipe.schedule(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Watch(lightning.Callback):
    """Laps the clock at Lightning's hooks; what it does between two of them counts with the part that ends there."""

    def __init__(self, run: PeerRun) -> None:
        self._run, self._done = run, 0
        self._timer: DDPTimer | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Start when all ranks are there."""
        device = str(module.device)
        self._run.joined(rank=trainer.global_rank, size=trainer.world_size, device=device)
        wrapped = trainer.strategy.model
        self._timer = DDPTimer(wrapped) if isinstance(wrapped, DistributedDataParallel) else None
        self._run.begin()

    def on_train_batch_start(self, *_: Any) -> None:
        """Have the data."""
        self._run.clock.lap("data")

    def on_before_backward(self, *_: Any) -> None:
        """Have the loss."""
        self._run.clock.lap("forward")

    def on_after_backward(self, *_: Any) -> None:
        """Have the gradients; with the step's last batch also those of the others."""
        self._run.clock.lap("backward")

    def on_before_optimizer_step(self, *_: Any) -> None:
        """Divide the backward that reduced over the ranks."""
        if self._timer is not None:
            self._timer.divide(self._run.clock)

    def on_train_batch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule, *_: Any) -> None:
        """Note the step, if this batch ended one."""
        self._run.clock.lap("optimizer")
        if trainer.global_step > self._done:
            self._done = trainer.global_step
            assert isinstance(module, Module)
            self._run.step_done(trainer.current_epoch, module.net, self._timer)


def train(run: PeerRun) -> None:
    """Fit with the settings that Lightning documents as its fastest."""
    on_cpu = run.spec.device == "cpu" or not torch.accelerator.is_available()
    lightning.seed_everything(run.recipe.seed, verbose=False)
    several = DDPStrategy(process_group_backend="gloo" if on_cpu else None, **best_settings())
    trainer = lightning.Trainer(
        accelerator="cpu" if on_cpu else "auto",
        devices=run.spec.workers,
        strategy=several if run.spec.workers > 1 else "auto",
        max_steps=run.plan.steps,
        max_epochs=-1,
        accumulate_grad_batches=run.accumulation,
        gradient_clip_val=run.recipe.clip,
        barebones=True,  # no logger, checkpoints, progress bar, summary, sanity check
        callbacks=[Watch(run)],
    )
    module = Module(run)
    trainer.fit(module, run.loader())
    run.finish(module.net, trainer.optimizers[0])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # its greetings; what goes wrong is noted in the run folder
    main(train)
