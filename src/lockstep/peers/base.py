"""One rank of a peer's run: what a foreign loop does becomes the records of a run folder.

a peer's process   1 `open_run`   read the spec, load the recipe, make the data
                   2 `joined`     the peer has met its ranks: records are opened, all ranks start together
                   3 its own loop laps the clock where it can, and calls `step_done` after each update
                   4 `finish`     evaluate, digest, result: as for our own strategies
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from lockstep.data.source import Source, fetch, open_source
from lockstep.errors import NotFinite
from lockstep.launch.parent_death import die_with_parent, parent_in
from lockstep.launch.process_exit import exit_now
from lockstep.launch.worker import record_failure
from lockstep.mesh import Mesh
from lockstep.output import lose_output
from lockstep.recipe import Loss
from lockstep.state.hashes import state_digest
from lockstep.state.holdings import model_holdings, plain_holdings
from lockstep.strategies.base import How, StepStats, as_sum
from lockstep.strategies.device_clock import clock_maker
from lockstep.train.evaluate import evaluate
from lockstep.train.evaluations import evaluation_batch
from lockstep.train.final_weights import check_weights
from lockstep.train.fingerprints import Fingerprints
from lockstep.train.loop import header
from lockstep.train.progress import Progress
from lockstep.train.records import Records
from lockstep.train.result import Ended, leave_result
from lockstep.train.result_figures import finite_or_none
from lockstep.train.schema.rank_jsonl import EvaluationLine
from lockstep.train.schema.run_json import read_setup
from lockstep.train.spec import RunSpec
from lockstep.train.steps import StepLog
from lockstep.world.detect import given_rank
from lockstep.world.place import World

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from lockstep.recipe import Plan, Recipe
    from lockstep.strategies.ddp_timer import DDPTimer


class Batches(Dataset[Any]):
    """A recipe's data for a stock DataLoader: it asks for whole batches, as (how many samples, what the loss gets)."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Any:
        return len(indices), fetch(self._source.dataset, indices, self._source.collate)


def as_it_is(batch: Any) -> Any:
    """Collate nothing: the batch is made already."""
    return batch


@dataclass
class PeerRun:
    """One rank's side of a peer's run."""

    folder: Path
    spec: RunSpec
    recipe: Recipe
    plan: Plan
    source: Source

    def __post_init__(self) -> None:
        self.records: Records | None = None
        self._pauses: Fingerprints | None = None
        self._total = self._weight = 0.0
        self._step = 0

    @property
    def accumulation(self) -> int:
        """Batches that a rank trains on before each update."""
        return self.plan.lanes // self.spec.workers

    @property
    def epoch_steps(self) -> int:
        """Steps of one pass over the data."""
        assert self.plan.epoch_steps is not None  # streams are refused before a peer starts
        return self.plan.epoch_steps

    def loader(self) -> DataLoader[Any]:
        """Return the stock loader of one lane's samples at a time; the peer shares it out over its ranks."""
        batch = self.recipe.global_batch // self.plan.lanes
        return DataLoader(Batches(self.source), batch, shuffle=not self.source.in_order, collate_fn=as_it_is)

    def make_model(self) -> nn.Module:
        """Return the model that every strategy starts from."""
        torch.manual_seed(self.recipe.seed)
        model = self.recipe.model()
        check_weights(model)
        return model

    def joined(self, *, rank: int, size: int, device: str) -> None:
        """Open this rank's records: the peer has built its process group."""
        device = "cpu" if torch.device(device).type == "cpu" else device  # some say cpu:0
        self.world = World(
            rank=rank,
            size=size,
            local_rank=rank,
            local_size=size,
            node=0,
            nodes=1,
            host=socket.gethostname(),
            device=device,
            threads=torch.get_num_threads(),
            backend=dist.get_backend() if dist.is_initialized() else None,
            launcher=self.spec.launcher,
        )
        self.mesh = Mesh.over(self.world)
        self._new_clock = clock_maker(device, measure=self.spec.measure)
        self.records = Records(self.folder, rank)
        self.records.write(header(self.mesh, self.plan, self._how()))
        self.log = StepLog(self.records, device, self.spec.measure)
        self._pauses = Fingerprints(self.folder, self.mesh.everyone) if self.spec.measure else None
        label = f"{self.recipe.name} {self.spec.strategy}, {size} worker{'s' if size > 1 else ''}"
        self._progress = Progress(self.plan.steps, label=label, shown=self.spec.progress and rank == 0)

    def begin(self) -> None:
        """Start the clock when all ranks are there."""
        assert self.records is not None
        self.records.step = 0
        self.mesh.everyone.barrier()
        self._progress.__enter__()
        self.started, self._began = time.time(), time.perf_counter()
        self._next_clock()

    def loss(self, model: nn.Module, batch: tuple[int, Any]) -> Tensor:
        """Return the mean loss of a batch, with its graph, and note it; stop the run if it is no number."""
        samples, data = batch
        returned = self.recipe.loss(model, data)
        loss = as_sum(returned, samples)
        if not math.isfinite(loss.value):
            raise NotFinite(
                f"the loss is {loss.value} at step {self._step}, rank {self.world.rank}: lower the learning rate, "
                "clip gradients, or look at this batch"
            )
        self._total, self._weight = self._total + loss.value, self._weight + loss.weight
        return loss.total / loss.weight if isinstance(returned, Loss) else returned

    def step_done(self, epoch: int, model: nn.Module, timer: DDPTimer | None) -> None:
        """Note a step: the weights have been updated."""
        assert self.records is not None
        total = time.perf_counter() - self._before
        sent = timer.sent if timer else 0
        mean = self._total / self._weight if self._weight else 0.0
        stats = StepStats.of(self._step, mean, self._weight, clock=self.clock, sent=sent)
        self.log.write(stats, epoch=epoch, began=self.clock.began, total=total)
        self._progress.step(self._step + 1, stats.loss)
        if self._pauses is not None:
            last = self._step == self.plan.steps - 1
            self._pauses.after(self._step, lambda: model_holdings(model) if self.world.rank == 0 else [], last=last)
        self._total = self._weight = 0.0
        self._step += 1
        self.records.step = self._step
        self._next_clock()

    def finish(self, model: nn.Module, optimizer: Optimizer) -> None:
        """End the measured time, evaluate, and leave the result; the model and the optimizer are the plain ones."""
        self.mesh.everyone.barrier()
        paused = self._pauses.seconds if self._pauses else 0.0
        seconds = time.perf_counter() - self._began - paused
        self._progress.__exit__(None, None, None)
        if self.world.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)
        began = time.perf_counter()
        metrics = self._evaluate(model)
        evaluation_seconds = time.perf_counter() - began
        self.log.samples = self._samples()
        held = plain_holdings(model, optimizer) if self.world.rank == 0 else []
        ended = Ended(
            plan=self.plan,
            recipe=self.recipe,
            model=model,
            holdings=held,
            digest=state_digest(self.mesh.everyone, held),
            metrics=metrics,
            started=self.started,
            seconds=seconds,
            paused=paused,
            evaluation_seconds=evaluation_seconds,
            how=self._how(),
            most_weights=self.spec.most_weights,
        )
        leave_result(self.folder, self.mesh, self.log, ended)

    def _samples(self) -> int:
        """Return how many samples the steps were trained on, over all ranks."""
        samples = self.plan.samples or 0
        epochs, rest = divmod(self.plan.steps, self.epoch_steps)
        return epochs * samples + min(rest * self.recipe.global_batch, samples)

    def _evaluate(self, model: nn.Module) -> dict[str, float]:
        """Evaluate after the last step, and note it as our own loop does."""
        assert self.records is not None
        if self.recipe.evaluate is None:
            return {}
        began = time.perf_counter()
        data, batch = self.recipe.eval_dataset(), evaluation_batch(self.recipe, self.plan)
        metrics = evaluate(self.mesh, model, self.recipe.evaluate, data, batch=batch, collate=self.recipe.collate)
        seconds = round(time.perf_counter() - began, 7)
        line = EvaluationLine(steps=self.plan.steps, metrics=finite_or_none(metrics), seconds=seconds)
        self.records.write(line)
        return metrics

    def _how(self) -> How:
        if self.world.size == 1:
            return How()
        return How(
            exchange=f"torch DDP over {self.world.backend}", optimizer="replicated: every worker updates its own copy"
        )

    def _next_clock(self) -> None:
        self.clock = self._new_clock()
        self._before = time.perf_counter()


def open_run(folder: Path) -> PeerRun:
    """Read the spec and load what it names."""
    spec = read_setup(folder).spec
    recipe = spec.load()
    data = recipe.dataset()
    plan = spec.plan(recipe, data)
    return PeerRun(folder, spec, recipe, plan, open_source(data, recipe.collate))


def main(train: Callable[[PeerRun], None]) -> None:
    """Be one rank of a peer's run, whose folder is the program's argument; leave a note if that fails."""
    folder, rank = Path(sys.argv[1]), given_rank(os.environ)
    die_with_parent(parent=parent_in(os.environ))
    lose_output()
    if os.getppid() == 1:  # whoever started this is gone already: importing a peer takes seconds
        os._exit(1)
    run: PeerRun | None = None
    code = 0
    try:
        run = open_run(folder)
        train(run)
    except BaseException as error:
        records = run.records if run else None
        step = records.step if records else -1
        if isinstance(error, NotFinite) and run is not None:
            run.log.write_not_finite(step, step // run.epoch_steps)
        code = record_failure(error, folder, rank, step, print_report=False)
    exit_now(code)
