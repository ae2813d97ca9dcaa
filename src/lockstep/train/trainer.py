"""Trainer: a model, a loss and a strategy, for the built-in loop and for a user's own."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lockstep.data.loader import Batch, Collate, Share, batches, fetch
from lockstep.data.placing import placed
from lockstep.data.source import open_source
from lockstep.errors import BadInput
from lockstep.lanes.schedule import check_lanes
from lockstep.mesh import Mesh
from lockstep.registry import BASELINE, DEFAULT, describe
from lockstep.settings import Settings
from lockstep.state.hashes import state_digest
from lockstep.state.holdings import model_only
from lockstep.state.stream import gather
from lockstep.state.table import agree
from lockstep.strategies import check_exact, find
from lockstep.strategies.base import StepStats, Training
from lockstep.strategies.clock import Clock
from lockstep.strategies.device_clock import clock_maker
from lockstep.train import determinism
from lockstep.train.checkpoint import load, save
from lockstep.train.checkpoint_file import Saved
from lockstep.train.checkpoint_header import Arithmetic
from lockstep.train.compiler_import import delay_compiler
from lockstep.train.determinism import deterministic
from lockstep.train.evaluate import evaluate
from lockstep.train.final_weights import weight_names
from lockstep.train.malloc import keep_freed_memory
from lockstep.train.model_check import check_batchnorm, check_initialised
from lockstep.train.optimizer_settings import first_settings
from lockstep.train.optimizer_state import optimizer_state_dict
from lockstep.train.same_start import Marks, check_same_data, check_same_model, data_marks
from lockstep.train.step_schedule import by_step
from lockstep.train.synchronise import check_equal_lanes, check_sync_batchnorm, fill_up, with_sync_batchnorm

if TYPE_CHECKING:
    from lockstep.recipe import LayerList, LossFunction, Metrics, OptimizerFactory, ScheduleFactory
    from lockstep.train.best_metric import BestMetric
    from lockstep.world.place import World


class Trainer:
    """Trains one model on a world.

        trainer = lockstep.Trainer(world, model, optimizer, loss, lanes=8)
        for batch in trainer.batches(dataset, global_batch=256, epoch=0):
            stats = trainer.step(batch)

    `model` is a module, or a function that makes one (called after the seed is set, so that every rank
    makes the same); `optimizer` is a function that makes the optimizer from the parameters it is given.

    `options` are fields of `lockstep.settings.Settings`; the built-in loop hands over all of them whole, as `settings`.
    Unless they are given, there are as many workers as the world has processes, as many lanes as workers, and the
    strategy is `ddp`, or `single` for one worker, as in `lockstep run`.
    `sync_batchnorm` converts the model's BatchNorm layers: the result then depends on the number of workers. So it does
    with `exact=False`: each worker then adds up its lanes one after another, not in the tree. `measure=False` leaves
    the parts of a step's time out of what `step` returns. `clip` is the largest norm of a gradient; `schedule` makes a
    learning-rate schedule. With `layers` or `pipeline`, `stages` is the number of parts, `layers` lists the model's
    layers as `Recipe(stages=...)` does, and `example` makes a batch of one lane, on which the layers are measured.
    """

    def __init__(
        self,
        world: World,
        model: nn.Module | Callable[[], nn.Module],
        optimizer: OptimizerFactory,
        loss: LossFunction,
        *,
        clip: float | None = None,
        schedule: ScheduleFactory | None = None,
        layers: LayerList | None = None,
        example: Callable[[], Any] | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        if not callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer):
            raise BadInput(
                "Trainer(optimizer=...) takes a function, so that a strategy can give it the parameters it keeps: "
                "pass lambda ps: AdamW(ps, lr=3e-4)"
            )
        asked = (settings or own_settings(world.size)).changed(options)
        check_exact(asked.strategy, asked.exact)
        description = describe(asked.strategy)
        description.check_workers(asked.workers, world.size)
        keep_freed_memory()
        if description.exact:
            delay_compiler()
        self.world = world
        self.mesh = Mesh.over(world, stages=asked.stage_count)
        replicas = self.mesh.replicas
        self.lanes, self.seed = asked.lanes or asked.workers, asked.seed or 0
        self.settings = replace(asked, lanes=self.lanes, seed=self.seed)
        passed = isinstance(model, nn.Module)
        if not isinstance(model, nn.Module):
            torch.manual_seed(self.seed)
            model = model()
        check_initialised(model)
        if self.mesh.everyone.size > 1:
            check_same_model(self.mesh.everyone, model, {"seed": self.seed, "lanes": self.lanes}, passed=passed)
        model = model.to(world.device)
        if description.equal_lanes:
            check_equal_lanes(asked.strategy, self.lanes, replicas)
        self._fill_up = (asked.sync_batchnorm or description.equal_lanes) and replicas > 1
        if asked.sync_batchnorm:
            check_sync_batchnorm(asked.strategy, self.lanes, asked.workers)
            model = with_sync_batchnorm(model)
        check_batchnorm(model, device=world.device, workers=world.size, exact=description.exact)
        training = Training(
            model=model,
            optimizer=optimizer,
            loss=loss,
            settings=self.settings,
            synchronised=self._fill_up,
            clip=clip,
            schedule=by_step(schedule),
            layers=layers,
            example=example,
        )
        self.strategy = find(asked.strategy)(self.mesh, training)
        self._deterministic = determinism.needed(self.settings, world)
        self._new_clock = clock_maker(world.device, measure=asked.measure)
        self._clock: Clock | None = None
        self.steps = 0
        """How many steps were done, those before a loaded checkpoint included."""
        self.epoch = 0
        """The epoch of the last step."""
        self.epoch_step: int | None = 0
        """How many steps of that epoch were done; None if its batches were not made by `batches`."""
        self.best: BestMetric | None = None
        """The best evaluation so far, where the built-in loop follows one; checkpoints keep it."""
        self._global_batch: int | None = None
        self._loaded = False
        self._given = (-1, 0)
        self._next_step = 0
        self._data_marks: Marks | None = None
        self._data_checked = self.mesh.everyone.size == 1
        self.first_settings = first_settings(self.strategy.tuned()[0])
        """Of the optimizer and the schedule, as they were before the first step."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that the function made; with `ddp` it has this worker's slices in place of the parameters."""
        return self.strategy.optimizer

    @property
    def lr(self) -> float:
        """The learning rate of the first group; set it on every worker, and all groups have it."""
        return float(self.optimizer.param_groups[0]["lr"])

    @lr.setter
    def lr(self, rate: float) -> None:
        for group in (group for tuned in self.strategy.tuned() for group in tuned.optimizer.param_groups):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    @property
    def model(self) -> nn.Module:
        """The plain model with its present weights."""
        return self.strategy.module

    def batches(
        self,
        dataset: Any,
        *,
        global_batch: int,
        epoch: int = 0,
        start: int | None = None,
        collate: Collate | None = None,
        drop_last: bool = False,
        prefetch: int | None = None,
    ) -> Iterator[Batch]:
        """Yield this worker's part of each global batch; the order follows from the seed and the epoch alone.

        `start` is the first step of the epoch; None: the first, or after `load` where the checkpoint stood.
        `dataset` may also be a stream or a stock DataLoader; `prefetch` batches are made ahead on a thread.
        `drop_last` leaves out a short last batch.
        """
        check_lanes(self.lanes, self.mesh.replicas, global_batch)
        start = self._start(epoch, global_batch) if start is None else start
        if not self._data_checked and self._data_marks is None:
            self._data_marks = data_marks(open_source(dataset, collate, global_batch), self.seed)
        self._global_batch, self._loaded = global_batch, False
        share = Share(
            global_batch=global_batch,
            lanes=self.lanes,
            workers=self.mesh.replicas,
            rank=self.mesh.replica,
            seed=self.seed,
            drop_last=drop_last,
            in_turn=self.strategy.lanes_in_turn,
        )
        source = batches(
            dataset,
            share,
            epoch=epoch,
            start=start,
            collate=collate,
            prefetch=prefetch,
            first_step=self._next_step or start,
        )
        if self.world.device != "cpu":
            source = placed(source, self.strategy.lane_device)
        for position in itertools.count(start + 1):
            self._clock = self._new_clock()
            batch = next(source, None)
            if batch is None:
                return
            if self._fill_up:
                batch = fill_up(batch, self.lanes // self.mesh.replicas, lambda: fetch(dataset, [0], collate))
            self._next_step = batch.step + 1
            self._given = (batch.step, position)
            yield batch

    def step(self, batch: Batch) -> StepStats:
        """Train on one batch; all workers call this together."""
        self._check_data_marks()
        clock, self._clock = self._clock or self._new_clock(), None
        clock.lap("data")
        self.model.train()
        with deterministic(self.world) if self._deterministic else contextlib.nullcontext():
            stats = self.strategy.step(batch, clock)
        given, position = self._given
        self.steps, self.epoch = batch.step + 1, batch.epoch
        self.epoch_step = position if given == batch.step else None
        return stats

    def evaluate(
        self,
        metrics: Metrics,
        dataset: Any,
        *,
        batch: int,
        collate: Collate | None = None,
        most: int | None = None,
    ) -> dict[str, float]:
        """Return the metrics over a dataset, or its first `most` samples, each counted once; all workers call this."""
        self.strategy.prepare_evaluation()
        call = self.strategy.forward_only
        try:
            return evaluate(self.mesh, self.model, metrics, dataset, batch=batch, collate=collate, most=most, call=call)
        finally:
            self.strategy.finish_evaluation()

    def digest(self) -> str:
        """Return the digest of parameters, buffers and optimizer state; all workers call this together."""
        return state_digest(self.mesh.everyone, self.strategy.holdings())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the whole `state_dict` of the plain model, on every rank; all workers call this together."""
        held = model_only(self.strategy.holdings())
        values = gather(self.mesh.everyone, agree(self.mesh.everyone, held), held)
        return {name: values[state] for name, state in weight_names(self.model).items()}

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Return the whole `state_dict` of the plain optimizer, on every rank; all workers call this together."""
        return optimizer_state_dict(self.mesh.everyone, self.strategy)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, whole or not at all; all workers call this together."""
        save(self, Path(path), self.arithmetic())

    def load(self, path: str | Path) -> None:
        """Take over a checkpoint of the same model, on any number of workers, whichever strategy wrote it.

        All workers call this together; rank 0 reads the file, and nothing in it is executed. Another arithmetic
        (seed, lanes, threads, ...) is refused; another version of what computes is a warning.
        """
        for text in self.resume(lambda: Saved(Path(path)), self.arithmetic()):
            warnings.warn(text, stacklevel=2)

    def resume(self, open_file: Callable[[], Saved], arithmetic: Arithmetic) -> list[str]:
        """Take over what rank 0 opens; return what may make other bits than an unbroken run's."""
        header, differences = load(self, open_file, arithmetic)
        self.steps = self._next_step = header.step
        self.epoch, self.epoch_step, self.best = header.epoch, header.epoch_step, header.best
        self._global_batch, self._loaded = header.arithmetic.global_batch, True
        return differences

    def check_data(self, dataset: Any, *, global_batch: int) -> None:
        """Raise if the ranks' data differ; all workers call this together. If nobody does, the first step does it."""
        if not self._data_checked:
            self._data_marks = data_marks(open_source(dataset, None, global_batch), self.seed)
            self._check_data_marks()

    def _check_data_marks(self) -> None:
        if not self._data_checked and self._data_marks is not None:
            self._data_checked = True
            check_same_data(self.mesh.everyone, self._data_marks)

    def arithmetic(self, recipe: str = "") -> Arithmetic:
        """Return what the bits depend on, beside the code and the data."""
        return Arithmetic.of(
            self.settings,
            recipe=recipe,
            global_batch=self._global_batch,
            threads=self.world.threads,
            clip=self.strategy.training.clip,
            products=determinism.products(self.world),
        )

    def _start(self, epoch: int, global_batch: int) -> int:
        """Return the first step of an epoch that was not done before the checkpoint that was loaded."""
        if not self._loaded or epoch > self.epoch:
            return 0
        if epoch < self.epoch:
            raise BadInput(
                f"epoch {epoch} was done before the checkpoint, which stands in epoch {self.epoch}: "
                "loop over range(trainer.epoch, epochs)"
            )
        if self._global_batch not in (None, global_batch):
            raise BadInput(
                f"the checkpoint was written with global batch {self._global_batch}, and here it is {global_batch}: "
                "use the same to the end of its epoch"
            )
        return self.epoch_step or 0


def own_settings(workers: int) -> Settings:
    """Return the settings of a loop whose author gave none: the strategy follows from the number of workers."""
    return Settings(workers=workers, strategy=BASELINE if workers == 1 else DEFAULT)
