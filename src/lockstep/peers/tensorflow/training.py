"""One rank's step in TensorFlow's graph: forward, backward, all-reduce and update, with the time of each.

The graph reads the clock where a part's results are there. Nothing waits for these readings, so the all-reduce may
begin while backward still runs; what of it is then hidden counts as backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep.peers.tensorflow.numpy_state import Array
from lockstep.peers.tensorflow.twin_optimizers import OPTIMIZERS, TwinOptimizer, torch_steps
from lockstep.peers.tensorflow.twins import MOMENTUM, RUNNING, TWINS, TrainingInput, to_tensorflow, to_torch

COUNTER = "num_batches_tracked"


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """This rank's part of a global batch."""

    parts: Sequence[Array]
    """Samples and labels."""
    mask: Array
    """Which inputs of the dropout stay; empty where there is no dropout."""
    lanes: tuple[int, ...]
    """How many samples each of its lanes has."""
    weight: int
    """How many of its samples count: 0 for the filler of a rank without samples."""
    samples: int
    """Of the global batch, over all ranks."""
    all_lanes: int
    """Lanes with samples, over all ranks."""


@dataclass(frozen=True, kw_only=True)
class GraphTimes:
    """When the parts of a step were done, in seconds since the epoch."""

    forward: float
    backward: float
    exchange: float
    end: float


class TwinTraining:
    """A twin's variables, its optimizer, and the graph of a step."""

    def __init__(self, recipe: str, initial: Mapping[str, Array], settings: Mapping[str, Any]) -> None:
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self._forward = TWINS[recipe]
        self._kind = str(settings["kind"])
        self._counters = {name: np.array(one) for name, one in initial.items() if name.endswith(COUNTER)}
        # Not in the strategy's scope: every rank starts from the same values, and updates them with the same gradients.
        self.variables = {
            name: tf.Variable(to_tensorflow(one)) for name, one in initial.items() if name not in self._counters
        }
        self.buffers = [name for name in self.variables if name.endswith(RUNNING)]
        self.parameters = [name for name in self.variables if name not in self.buffers]
        trained = {name: self.variables[name] for name in self.parameters}
        self._precision = next(iter(trained.values())).dtype
        self.optimizer: TwinOptimizer = OPTIMIZERS[self._kind](settings, trained)
        self.steps = 0
        self._graphs: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._scores = tf.function(lambda points: self._forward(self.variables, points, None)[0], autograph=False)
        self._sum = tf.function(lambda values: self._reduced([values])[0], autograph=False)

    @property
    def gradient_bytes(self) -> int:
        """What a rank puts into the all-reduce."""
        numbers = sum(int(np.prod(self.variables[name].shape)) for name in (*self.parameters, *self.buffers))
        return int(self._precision.size) * numbers

    def step(self, given: StepInput) -> tuple[float, GraphTimes]:
        """Train on a batch; return the sum of this rank's losses, and when the parts were done."""
        graph = self._graphs.get(given.lanes)
        if graph is None:
            graph = self._graphs[given.lanes] = tf.function(self._graph(given.lanes), autograph=False)
        total, times = graph(
            *(tf.constant(part) for part in given.parts),
            tf.constant(given.mask),
            tf.constant((given.weight > 0) / given.samples, self._precision),
            tf.constant((given.weight > 0) / given.all_lanes, self._precision),
            tf.constant(self.optimizer.scalars(self.steps), self._precision),
        )
        loss, (forward, backward, exchange) = float(total), np.maximum.accumulate(times.numpy()).tolist()
        self.steps += 1
        return loss, GraphTimes(forward=forward, backward=backward, exchange=exchange, end=time.time())

    def _graph(self, lanes: tuple[int, ...]) -> Callable[..., Any]:
        def replica(points: Any, labels: Any, mask: Any, share: Any, lane_share: Any, scalars: Any) -> Any:
            with tf.GradientTape() as tape:
                scores, measured = self._forward(self.variables, points, TrainingInput(lanes=lanes, mask=mask))
                total = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
                shared = total * share
            with tf.control_dependencies([total]):
                forward = tf.timestamp()
            gradients = tape.gradient(shared, [self.variables[name] for name in self.parameters])
            with tf.control_dependencies(gradients):
                backward = tf.timestamp()
            means = [measured[name] * lane_share for name in self.buffers]
            reduced = self._replica_sum([*gradients, *means])
            with tf.control_dependencies(reduced):
                exchange = tf.timestamp()
            for name, gradient in zip(self.parameters, reduced, strict=False):
                self.optimizer.update(name, self.variables[name], gradient, scalars)
            for name, mean in zip(self.buffers, reduced[len(self.parameters) :], strict=True):
                self.variables[name].assign((1 - MOMENTUM) * self.variables[name] + MOMENTUM * mean)
            return total, tf.stack([forward, backward, exchange])

        return lambda *values: self.strategy.run(replica, args=values)

    def _replica_sum(self, values: list[Any]) -> list[Any]:
        if self.strategy.num_replicas_in_sync == 1:
            return values
        summed: list[Any] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
        return summed

    def _reduced(self, values: list[Any]) -> Any:
        # Copied: an all-reduce takes only what has a device, and a graph's argument has none.
        return self.strategy.run(lambda: self._replica_sum([tf.identity(value) for value in values]))

    def gather(self, rank: int, size: int, numbers: Sequence[float]) -> list[list[float]]:
        """Return all ranks' numbers; also a barrier."""
        table = np.zeros((size, len(numbers)))
        table[rank] = numbers
        rows: list[list[float]] = self._sum(tf.constant(table)).numpy().tolist()
        return rows

    def evaluate(self, parts: Sequence[Array], chunk: int) -> dict[str, float]:
        """Return the mean loss and the accuracy over samples and labels, as the recipes define them."""
        loss = right = 0.0
        for start in range(0, len(parts[0]), chunk):
            points, labels = (tf.constant(np.ascontiguousarray(part[start : start + chunk])) for part in parts)
            scores = self._scores(points)
            loss += float(tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)))
            right += float(tf.reduce_sum(tf.cast(tf.argmax(scores, 1) == labels, tf.float32)))
        return {"loss": loss / len(parts[0]), "accuracy": right / len(parts[0])}

    def model_state(self) -> dict[str, Array]:
        """Return parameters and buffers as they lie in torch, under the names of the digest."""
        state = {f"parameter/{name}": to_torch(self.variables[name].numpy()) for name in self.parameters}
        state |= {f"buffer/{name}": to_torch(self.variables[name].numpy()) for name in self.buffers}
        return state | {f"buffer/{name}": one + self.steps for name, one in self._counters.items()}

    def whole_state(self) -> dict[str, Array]:
        """Return the state that the digest is over."""
        state = self.model_state()
        for name, held in self.optimizer.state.items():
            for key, one in held.items():
                state[f"optimizer/{name}/{key}"] = to_torch(one.numpy())
            for key, value in torch_steps(self._kind, self.steps).items():
                state[f"optimizer/{name}/{key}"] = value
        return state
