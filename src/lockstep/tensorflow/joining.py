"""Join the world of this process as TensorFlow wants it: the ranks meet, agree on ports, and TF_CONFIG is set.

1  the launcher's variables say which rank this is                    as for torch: world/detect.py
2  each rank reserves a port and tells the others, without torch      world/meeting.py
3  TF_CONFIG is set, on one host with addresses of the loopback interface
4  a thread watches the others: a rank that dies is named, and this one ends, where TensorFlow might wait for ever
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep import process_wide
from lockstep.errors import BadInput
from lockstep.tensorflow.cluster import (
    PARAMETER_SERVERS_WARNING,
    VARIABLE,
    check_roles,
    config_for,
    conflict,
    disagreement,
    given_config,
    own_port,
    task_of,
)
from lockstep.tensorflow.environment import INSTALL
from lockstep.tensorflow.keras_fit import keras_version, warning_for
from lockstep.world.addresses import LOOPBACK, is_free, reserved_port
from lockstep.world.detect import detect
from lockstep.world.join import JOIN_SECONDS, host_identity, locate
from lockstep.world.meeting import Meeting, Message, about_this_process, meet, where
from lockstep.world.place import Place, World
from lockstep.world.resources import choose_threads

if TYPE_CHECKING:
    from types import TracebackType

TOLD_SECONDS = 2.0
"""After an error, until the others hear of it from a process that does not end."""
Lost = Callable[[str], None]
"""What to do when a rank is lost, in the words that name it."""


@dataclass(frozen=True, kw_only=True)
class TensorFlowWorld(World):
    """This process's place in the world, with the cluster as TensorFlow knows it."""

    config: dict[str, Any]
    """What TF_CONFIG holds; empty for one rank alone."""
    task: str = "worker"
    """The role: `worker`; with parameter servers also `chief` and `ps`."""
    meeting: Meeting | None = field(default=None, repr=False, compare=False)
    """The connections to the other ranks."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.leave()
        elif self.meeting is not None:
            # The end of this process tells the others, after its traceback; if it does not end, they are told soon.
            soon = threading.Timer(TOLD_SECONDS, self.meeting.leave, kwargs={"done": False})
            soon.daemon = True
            soon.start()

    def leave(self, *, done: bool = True) -> None:
        """Tell the others that this rank is done, and wait for them; not `done`: that it failed. Safe to call twice."""
        if self.meeting is not None:
            self.meeting.leave(done=done, wait="chief" not in self.config["cluster"] or self.task == "worker")


_joined: list[TensorFlowWorld] = []
"""The world of this process: TensorFlow starts its server once, so there is no second one."""


def join(
    *,
    parameter_servers: int = 0,
    threads: int | None = None,
    join_seconds: float = JOIN_SECONDS,
    place: Place | None = None,
    lost: Lost | None = None,
) -> TensorFlowWorld:
    """Join the world in which this process was started, under any launcher, and set TF_CONFIG for TensorFlow.

    Call it before the strategy is made. A process without a launcher is a world of one rank, and TF_CONFIG stays as it
    is. Called again, it returns the same world. `lost` is called, in another thread, when a rank has died; not given,
    this process says which one it was, and ends with code 1.
    """
    if _joined:
        return _joined[0]
    process_wide.check()
    place = place or detect(os.environ)
    check_roles(place.size, parameter_servers)
    tensorflow = _import_tensorflow()
    count = _set_threads(tensorflow, threads)
    config, meeting = given_config(os.environ) or {}, None
    if place.size > 1:
        meeting = _meet(place, config, parameter_servers, str(tensorflow.__version__), join_seconds)
        place = locate(place, [str(message["identity"]) for message in meeting.messages])
        config = config or config_for(_addresses(meeting.messages, place), place.rank, parameter_servers)
        os.environ[VARIABLE] = json.dumps(config)
    elif config and (why := conflict(config, place)):
        raise BadInput(why)
    world = TensorFlowWorld(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        node=place.node,
        nodes=place.nodes,
        host=socket.gethostname(),
        device=_own_device(tensorflow, place),
        threads=count,
        backend=None,
        launcher=place.launcher,
        config=config,
        task=task_of(place.rank, parameter_servers)[0],
        meeting=meeting,
    )
    _joined.append(world)
    if meeting is not None:
        _watch(world, meeting, lost or _end_this_rank)
        _advise(world, parameter_servers)
    return world


def _import_tensorflow() -> Any:
    if find_spec("tensorflow") is None:
        raise BadInput(f"TensorFlow is not installed for {sys.executable}: {INSTALL}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # its greetings; warnings and errors stay
    import tensorflow

    return tensorflow


def _set_threads(tensorflow: Any, threads: int | None) -> int:
    """Set TensorFlow's threads as torch's are set elsewhere, see [Note: threads]; return how many."""
    count = threads or choose_threads(os.environ)[0]
    if threads is None and process_wide.leave("threads"):
        return int(tensorflow.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1)
    try:
        tensorflow.config.threading.set_intra_op_parallelism_threads(count)
        # Two at least: a collective that waits must not keep the operation that it waits for from running.
        tensorflow.config.threading.set_inter_op_parallelism_threads(max(2, count))
    except RuntimeError as error:
        raise BadInput(
            "TensorFlow has computed something already, so its threads can no longer be set: call "
            "lockstep.tensorflow.join() first, right after the imports"
        ) from error
    return count


def _own_device(tensorflow: Any, place: Place) -> str:
    """Return this rank's device: its own GPU, if there is one for every rank of this host."""
    devices = tensorflow.config.list_physical_devices("GPU")
    if not devices:
        return "cpu"
    if place.local_size > len(devices):
        raise BadInput(
            f"{place.local_size} ranks on this host, but only {len(devices)} GPUs: use at most {len(devices)} ranks "
            "per host, or hide them with CUDA_VISIBLE_DEVICES= to compute on the CPU"
        )
    tensorflow.config.set_visible_devices(devices[place.local_rank], "GPU")
    return f"gpu:{place.local_rank}"


def _meet(place: Place, given: dict[str, Any], parameter_servers: int, version: str, seconds: float) -> Meeting:
    """Tell the others where this rank's server will be; what is wrong here is raised on all ranks."""
    about: Message = {
        **about_this_process(),
        "identity": host_identity(),
        "tensorflow": version,
        "parameter_servers": parameter_servers,
        "cluster": given.get("cluster"),
    }
    if given:
        about["refusal"] = conflict(given, place, parameter_servers)
        port = own_port(given)
        if about["refusal"] is None and port is not None and not is_free(port):
            about["refusal"] = (
                f"port {port}, which TF_CONFIG gives to rank {place.rank} on {about['host']}, is in use by another "
                "program: change TF_CONFIG on all ranks, or unset it and free ports are agreed on"
            )
    else:
        about["port"] = reserved_port()
    return meet(place, lambda address: {**about, "address": address}, disagreement, seconds)


def _addresses(messages: list[Message], place: Place) -> list[str]:
    """Return `host:port` of every rank; on one host nothing leaves the loopback interface."""
    if place.nodes == 1:
        return [f"{LOOPBACK}:{message['port']}" for message in messages]
    if any(not message["address"] for message in messages):
        raise BadInput(
            f"the ranks are on {place.nodes} hosts, and do not know each other's addresses: set MASTER_ADDR and "
            "MASTER_PORT for all ranks"
        )
    named = [(str(message["address"]), message["port"]) for message in messages]
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in named]


def _watch(world: TensorFlowWorld, meeting: Meeting, lost: Lost) -> None:
    def gone(rank: int) -> None:
        about = where(meeting.messages[rank])
        lost(
            f"rank {rank} of {world.size} ({about}) ended without saying that it is done: what it printed last says "
            f"why. Rank {world.rank} ends too, since TensorFlow would wait for it"
        )

    def left(rank: int) -> None:
        if rank == 0 and world.task in ("ps", "worker") and "chief" in world.config["cluster"]:
            os._exit(0)  # servers have no end of their own: the chief is done

    meeting.watch(gone, left)
    # A script without `with` leaves here, unless it failed.
    atexit.register(lambda: world.leave(done=getattr(sys, "last_value", None) is None))


def _end_this_rank(why: str) -> None:
    print(f"lockstep: {why}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(1)  # the main thread may be inside TensorFlow, where no exception reaches it


def _advise(world: TensorFlowWorld, parameter_servers: int) -> None:
    """Say once what is known not to work, or not to be wise."""
    if world.rank:
        return
    if parameter_servers:
        print(f"lockstep: {PARAMETER_SERVERS_WARNING}", file=sys.stderr, flush=True)  # noqa: T201
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script and (warning := warning_for(Path(script), keras_version(), os.environ)):
        print(f"lockstep: {warning}", file=sys.stderr, flush=True)  # noqa: T201
