"""Rank 1 dies in the fourth step, without a word; rank 0 is then inside TensorFlow's all-reduce, or before it."""

import os
import signal

import tensorflow as tf

import lockstep.tensorflow

world = lockstep.tensorflow.join()
strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total(value: tf.Tensor) -> tf.Tensor:
    """Return the sum over ranks."""

    def own() -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.identity(value))

    return strategy.run(own)


for step in range(10_000):
    if step == 3:
        print(f"rank {world.rank} of {world.size} at step 3", flush=True)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    total(tf.constant(1.0))
