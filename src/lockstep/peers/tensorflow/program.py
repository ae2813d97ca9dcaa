"""One rank of `tensorflow`: reads what was prepared with numpy, trains the twin, and leaves a run folder's records.

No torch is imported: this runs in TensorFlow's own environment.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lockstep.data.sampler import permutation
from lockstep.errors import NotFinite, PeerLost
from lockstep.lanes.schedule import lane_samples, owned_lanes
from lockstep.launch.parent_death import die_with_parent, parent_in
from lockstep.launch.process_exit import exit_now
from lockstep.launch.worker import record_failure
from lockstep.output import lose_output
from lockstep.recipe import Plan
from lockstep.registry.peers import PREPARED
from lockstep.strategies.clock import PARTS
from lockstep.strategies.stats import How, StepStats
from lockstep.tensorflow.joining import TensorFlowWorld, join
from lockstep.train import memory_use
from lockstep.train.progress import Progress
from lockstep.train.records import Lines, Records, write_document
from lockstep.train.result_figures import Figures, finite_or_none, rank_result, rank_row, result_document
from lockstep.train.schema.fingerprints_jsonl import NAME as FINGERPRINTS
from lockstep.train.schema.fingerprints_jsonl import FingerprintLine, is_fingerprint_step
from lockstep.train.schema.rank_jsonl import EndLine, EvaluationLine, HeaderLine
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.run_json import read_setup
from lockstep.train.steps import StepLog, waited
from lockstep.train.weights import NAME as WEIGHTS
from lockstep.world.detect import given_rank
from lockstep.world.resources import own_cpus

if TYPE_CHECKING:
    from lockstep.peers.tensorflow.numpy_state import Array
    from lockstep.peers.tensorflow.training import GraphTimes, StepInput, TwinTraining

EVALUATED = 256
"""Samples that are evaluated at once."""


class TensorFlowRank:
    """One rank's side of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.setup = folder, read_setup(folder)
        self.spec, self.plan = self.setup.spec, Plan(**msgspec.structs.asdict(self.setup.plan))
        self.records: Records | None = None

    def join(self) -> None:
        """Meet the other ranks, and read what was prepared."""
        if self.spec.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.world: TensorFlowWorld = join(threads=self.spec.threads, lost=self._lost)
        from lockstep.peers.tensorflow.training import TwinTraining
        from lockstep.peers.tensorflow.twins import images_last

        prepared = self.folder / PREPARED
        settings = json.loads((prepared / "settings.json").read_text(encoding="utf-8"))
        with np.load(prepared / "weights.npz") as weights:
            self.training: TwinTraining = TwinTraining(self.setup.recipe.name, dict(weights), settings)
        self._train = [np.load(path, mmap_mode="r") for path in sorted(prepared.glob("train-*.npy"))]
        self._eval = [images_last(np.load(path)) for path in sorted(prepared.glob("eval-*.npy"))]
        masks = prepared / "masks.npy"
        self._masks: Array | None = np.load(masks, mmap_mode="r") if masks.is_file() else None
        self._last_axis = images_last
        self.records = Records(self.folder, self.world.rank)
        self.records.write(self._header())
        self.log = StepLog(self.records, self.world.device, self.spec.measure)

    def train(self) -> None:
        """Train for as many steps as the plan has, evaluate, and leave the result."""
        assert self.records is not None
        world, steps = self.world, self.plan.steps
        lines = Lines(self.folder / FINGERPRINTS) if self.spec.measure and world.rank == 0 else None
        label = f"{self.setup.recipe.name} {self.spec.strategy}, {world.size} worker{'s' if world.size > 1 else ''}"
        self.records.step, paused = 0, 0.0
        self._barrier()
        started, began = time.time(), time.perf_counter()
        with Progress(steps, label=label, shown=self.spec.progress and world.rank == 0) as progress:
            for step in range(steps):
                progress.step(step + 1, self._step(step))
                if self.spec.measure and is_fingerprint_step(step, last=step == steps - 1):
                    paused += self._fingerprints(step, lines)
                self.records.step = step + 1
        self._barrier()
        seconds = time.perf_counter() - began - paused
        if lines is not None:
            lines.close()
        metrics, evaluation_seconds = self._evaluate()
        self._finish(
            Figures(
                plan=self.plan,
                digest=self._digest(),
                metrics=metrics,
                started=started,
                seconds=seconds,
                paused=paused,
                evaluation_seconds=evaluation_seconds,
                how=self._how(),
            )
        )

    def _step(self, step: int) -> float:
        """Train on one global batch, and note it; return this rank's mean loss."""
        epoch = step // (self.plan.epoch_steps or 1)
        began, start = time.time(), time.perf_counter()
        given = self._read(step, epoch)
        read = time.time()
        total, times = self.training.step(given)
        taken = time.perf_counter() - start
        if not math.isfinite(total):
            raise NotFinite(
                f"the loss is {total} at step {step}, rank {self.world.rank}: lower the learning rate, or look at this "
                "batch"
            )
        loss = total / given.weight if given.weight else 0.0
        self.log.write(self._stats(step, loss, given, (began, read, times)), epoch=epoch, began=began, total=taken)
        self.log.samples += given.samples
        return loss

    def _stats(self, step: int, loss: float, given: StepInput, clock: tuple[float, float, GraphTimes]) -> StepStats:
        began, read, times = clock
        ends = (read, times.forward, times.backward, times.exchange, times.end)
        starts = (began, *ends)
        spans = [
            (part, start - began, max(0.0, end - start), None)
            for part, start, end in zip(PARTS, starts, ends, strict=False)
        ]
        several = self.world.size > 1
        return StepStats(
            step,
            loss,
            float(given.weight),
            {**dict.fromkeys(PARTS, 0.0), **{part: length for part, _, length, _ in spans}},
            spans,
            ready=times.backward if several else None,
            sent=self.training.gradient_bytes if several else 0,
        )

    def _read(self, step: int, epoch: int) -> StepInput:
        """Return this rank's samples of a step: the same in the same lanes as with every strategy."""
        from lockstep.peers.tensorflow.training import StepInput

        recipe, samples = self.setup.recipe, len(self._train[0])
        first = (step % (self.plan.epoch_steps or 1)) * recipe.global_batch
        count = min(recipe.global_batch, samples - first)
        parts = [lane_samples(count, self.plan.lanes, lane) for lane in self._lanes]
        low, high = parts[0].start, parts[-1].stop
        weight = high - low
        if weight:
            chosen = permutation(samples, seed=recipe.seed, epoch=epoch, start=first + low, stop=first + high).astype(
                np.int64
            )
        else:
            chosen = np.zeros(1, np.int64)  # as in [Note: filler]
        read = [self._last_axis(part[chosen]) for part in self._train]
        return StepInput(
            parts=read,
            mask=self._mask(step, count, slice(low, low + len(chosen))),
            lanes=tuple(len(part) for part in parts if len(part)) or (1,),
            weight=weight,
            samples=count,
            all_lanes=min(count, self.plan.lanes),
        )

    @property
    def _lanes(self) -> range:
        return owned_lanes(self.plan.lanes, self.world.size, self.world.rank)

    def _mask(self, step: int, count: int, rows: slice) -> Array:
        if self._masks is None:
            return np.zeros(0, bool)
        width = self._masks.shape[1] * 8 // self.setup.recipe.global_batch
        bits = np.unpackbits(self._masks[step], count=count * width).reshape(count, width)
        kept = bits[rows].astype(bool)
        return kept if len(kept) else np.ones((1, width), bool)

    def _fingerprints(self, step: int, lines: Lines | None) -> float:
        """Look at the weights while all ranks stand still; return how long that took."""
        from lockstep.peers.tensorflow.numpy_state import fingerprints

        began = time.perf_counter()
        if lines is not None:
            kinds: dict[str, dict[str, Any]] = {"parameter": {}, "buffer": {}}
            for name, one in fingerprints(self.training.model_state()).items():
                kind, _, plain = name.partition("/")
                kinds[kind][plain] = one
            lines.write(FingerprintLine(step=step, parameters=kinds["parameter"], buffers=kinds["buffer"]))
        self._barrier()
        return time.perf_counter() - began

    def _evaluate(self) -> tuple[dict[str, float], float]:
        """Evaluate on rank 0, and tell the others."""
        assert self.records is not None
        began = time.perf_counter()
        mine = self.training.evaluate(self._eval, EVALUATED) if self.world.rank == 0 else {"loss": 0.0, "accuracy": 0.0}
        metrics = dict(zip(mine, self._gather(list(mine.values()))[0], strict=True))
        seconds = round(time.perf_counter() - began, 7)
        self.records.write(EvaluationLine(steps=self.plan.steps, metrics=finite_or_none(metrics), seconds=seconds))
        return metrics, seconds

    def _digest(self) -> str:
        from lockstep.peers.tensorflow.numpy_state import state_digest

        return state_digest(self.training.whole_state())

    def _finish(self, figures: Figures) -> None:
        """Write this rank's end, and on rank 0 the weights and the result."""
        assert self.records is not None
        from lockstep.peers.tensorflow.numpy_state import write_weights

        world = self.world
        peak = memory_use.peak("cpu")
        self.records.write(EndLine(seconds=figures.seconds, peak_memory=peak.size, digest=figures.digest))
        wait = 0.0
        if table := self.log.ready_table():
            flat = self._gather([number for row in table for number in row])
            wait = waited([[row[i : i + 2] for i in range(0, len(row), 2)] for row in flat], world.rank)
        rows = self._gather(rank_row(self.log, world.host, peak=peak, wait=wait, replica=world.rank))
        if world.rank:
            return
        ranks = [rank_result(rank, row) for rank, row in enumerate(rows)]
        usual = max(rank.step_seconds for rank in ranks)
        result = result_document(
            world,
            self.log,
            figures,
            ranks,
            start_seconds=max(0.0, figures.started - self.setup.created),
            memory_measure=peak.measure,
            compile_seconds=max(0.0, self.log.totals[0] - usual),  # the first step makes the graph
        )
        about = {"recipe": self.setup.recipe.name, "step": self.plan.steps, "digest": figures.digest}
        write_weights(self.folder / WEIGHTS, self.training.model_state(), about, self.spec.most_weights)
        write_document(self.folder / RESULT, result)

    def _gather(self, numbers: list[float]) -> list[list[float]]:
        return self.training.gather(self.world.rank, self.world.size, numbers)

    def _barrier(self) -> None:
        self._gather([0.0])

    def _how(self) -> How:
        if self.world.size == 1:
            return How()
        return How(
            exchange="TensorFlow's all-reduce over gRPC", optimizer="replicated: every worker updates its own copy"
        )

    def _header(self) -> HeaderLine:
        world, how = self.world, self._how()
        return HeaderLine(
            rank=world.rank,
            size=world.size,
            replica=world.rank,
            stage=0,
            host=world.host,
            pid=os.getpid(),
            device=world.device,
            threads=world.threads,
            cpus=own_cpus(os.environ, world.local_size),
            backend=None,
            lanes=self.plan.lanes,
            time=time.time(),
            exchange=how.exchange,
            optimizer=how.optimizer,
        )

    def _lost(self, why: str) -> None:
        """Leave a note: another rank has died, and TensorFlow would wait for it."""
        step = self.records.step if self.records else -1
        exit_now(record_failure(PeerLost(why), self.folder, given_rank(os.environ), step, print_report=False))


def main() -> None:
    """Be one rank, whose run folder is the program's argument; leave a note if that fails."""
    folder = Path(sys.argv[1])
    die_with_parent(parent=parent_in(os.environ))
    lose_output()
    rank, code = TensorFlowRank(folder), 0
    try:
        rank.join()
        rank.train()
        rank.world.leave()
    except BaseException as error:
        step = rank.records.step if rank.records else -1
        if isinstance(error, NotFinite):
            rank.log.write_not_finite(step, step // (rank.plan.epoch_steps or 1))
        code = record_failure(error, folder, given_rank(os.environ), step, print_report=False)
    exit_now(code)


if __name__ == "__main__":
    main()
