"""TensorFlow from the same launchers: `join()` makes TF_CONFIG of the world in which this process was started.

    import lockstep.tensorflow

    with lockstep.tensorflow.join() as world:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

No module here imports torch.
"""

from lockstep.tensorflow.joining import TensorFlowWorld, join

__all__ = ["TensorFlowWorld", "join"]
