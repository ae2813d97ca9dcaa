"""A loop of your own in TensorFlow, on any number of workers: the losses are those of one worker.

    lockstep launch --framework tensorflow --workers 2 examples/tensorflow_loop.py
    srun -n 2 python examples/tensorflow_loop.py           with a Python that has TensorFlow and Lockstep

Sums are divided once, by the number of all samples, so workers may have shares of different sizes.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import lockstep.tensorflow

SAMPLES, FEATURES, STEPS, RATE = 96, 16, 40, 0.05

with lockstep.tensorflow.join() as world:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    draw = np.random.default_rng(0)
    points = draw.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    targets = points @ draw.normal(size=(FEATURES, 1)).astype(np.float32)
    share = slice(world.rank * SAMPLES // world.size, (world.rank + 1) * SAMPLES // world.size)
    with strategy.scope():
        weights = tf.Variable(np.zeros((FEATURES, 1), np.float32))

    def step(inputs: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        """Update the weights with everybody's gradient; return everybody's loss."""
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.square(inputs @ weights - wanted))
        context = tf.distribute.get_replica_context()
        gradient, loss = context.all_reduce("sum", [tape.gradient(total, weights), total])
        weights.assign_sub(RATE * gradient / SAMPLES)
        return loss / SAMPLES

    @tf.function
    def train(inputs: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        """Run the step in TensorFlow's graph."""
        return strategy.run(step, args=(inputs, wanted))

    for _ in range(STEPS):
        loss = train(tf.constant(points[share]), tf.constant(targets[share]))
    print(f"rank {world.rank} of {world.size}, started by {world.launcher}: loss {float(loss):.6f}", flush=True)
