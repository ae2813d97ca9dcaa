"""A script as TensorFlow's own guide writes it for parameter servers; it knows nothing of Lockstep."""

import os

os.environ["GRPC_FAIL_FAST"] = "use_caller"

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True
    )
    print(f"{resolver.task_type} serves", flush=True)
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    counter = tf.Variable(0.0)


@tf.function
def add() -> None:
    """Add one, on a worker; the variable is on the server."""
    counter.assign_add(1.0)


for _ in range(5):
    coordinator.schedule(add)
coordinator.join()
print(f"counted to {float(counter):g} on {counter.device}", flush=True)
