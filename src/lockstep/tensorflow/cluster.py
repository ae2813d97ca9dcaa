"""TF_CONFIG: TensorFlow's own description of who is where. Pure.

    {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 1}}               mirrored
    {"cluster": {"chief": [...], "ps": [...], "worker": [...]}, "task": {"type": "ps", "index": 0}}   parameter servers

With parameter servers rank 0 is the chief, the next ranks are the servers, and the rest are the workers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.world.place import Place

VARIABLE = "TF_CONFIG"
NO_CLUSTER = "unset TF_CONFIG, and the launcher's ranks decide; or start the processes without a launcher"
PARAMETER_SERVERS_WARNING = (
    "parameter servers: the workers update the weights whenever they are ready, so the result depends on timing and is "
    "not that of one process, and each server's network is shared by all workers. Keras' author calls it basically "
    "never the right idea. MultiWorkerMirroredStrategy needs no servers: leave parameter_servers out"
)


def check_roles(size: int, parameter_servers: int) -> None:
    """Refuse a number of parameter servers that leaves no worker, or none for a negative one."""
    if parameter_servers < 0 or (parameter_servers and size < parameter_servers + 2):
        raise BadInput(
            f"parameter_servers={parameter_servers} with {size} ranks: rank 0 is the chief and at least one rank must "
            f"be a worker, so {max(parameter_servers, 1)} need at least {max(parameter_servers, 1) + 2} ranks. Start "
            "more, or use fewer servers"
        )


def task_of(rank: int, parameter_servers: int) -> tuple[str, int]:
    """Return the role of a rank, and its number among those of that role."""
    if not parameter_servers:
        return "worker", rank
    if rank == 0:
        return "chief", 0
    return ("ps", rank - 1) if rank <= parameter_servers else ("worker", rank - 1 - parameter_servers)


def config_for(addresses: Sequence[str], rank: int, parameter_servers: int = 0) -> dict[str, Any]:
    """Return TF_CONFIG of a rank, from all ranks' `host:port`."""
    cluster: dict[str, list[str]] = {}
    for number, address in enumerate(addresses):
        cluster.setdefault(task_of(number, parameter_servers)[0], []).append(address)
    kind, index = task_of(rank, parameter_servers)
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


def given_config(env: Mapping[str, str]) -> dict[str, Any] | None:
    """Return TF_CONFIG if somebody set it; refuse one that TensorFlow could not read."""
    text = env.get(VARIABLE, "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        whole = isinstance(task["index"], int) and task["index"] < len(cluster[task["type"]])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"TF_CONFIG={text!r:.200} cannot be read ({type(error).__name__}: {error}): {NO_CLUSTER}"
        ) from error
    if not whole:
        raise BadInput(f"TF_CONFIG={text!r:.200} has a task that is not in its cluster: {NO_CLUSTER}")
    return dict(config)


def conflict(given: Mapping[str, Any], place: Place, parameter_servers: int = 0) -> str | None:
    """Say how a TF_CONFIG that was set contradicts the launcher; None if both say the same."""
    cluster, task = given["cluster"], given["task"]
    tasks = sum(len(addresses) for addresses in cluster.values())
    kind, index = task_of(place.rank, parameter_servers)
    if parameter_servers == 0 and "chief" in cluster:  # the mirrored strategy takes a chief for the first worker
        kind, index = ("chief", 0) if place.rank == 0 else ("worker", place.rank - 1)
    if (tasks, task["type"], task["index"]) == (place.size, kind, index):
        return None
    return (
        f"TF_CONFIG is set, and says {task['type']} {task['index']} of {tasks} tasks; but {place.launcher} started "
        f"this process as rank {place.rank} of {place.size}, which is {kind} {index}. One of the "
        f"two is wrong: {NO_CLUSTER}"
    )


def own_port(given: Mapping[str, Any]) -> int | None:
    """Return the port on which this task's server is to listen, by a TF_CONFIG that was set."""
    task = given["task"]
    port = str(given["cluster"][task["type"]][task["index"]]).rpartition(":")[2]
    return int(port) if port.isdecimal() else None


def disagreement(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Say why the ranks cannot be one cluster; None if they can. All ranks' messages, by rank."""
    for message in messages:
        if message.get("refusal"):
            return str(message["refusal"])
    for what, advice in (
        ("tensorflow", "install the same version on all hosts"),
        ("parameter_servers", "call join() with the same parameter_servers on all ranks"),
        ("cluster", "TF_CONFIG must name the same cluster on all ranks: unset it on all of them, or correct it"),
    ):
        said: dict[str, list[int]] = {}
        for rank, message in enumerate(messages):
            said.setdefault(json.dumps(message.get(what)), []).append(rank)
        if len(said) > 1:
            each = (
                f"{what} {value} on rank {', '.join(map(str, ranks))} (host {messages[ranks[0]].get('host')})"
                for value, ranks in said.items()
            )
            return f"the ranks differ: {'; '.join(each)}: {advice}"
    return None
