"""How the ranks of a world find each other: through one store, opened as the launcher allows.

    rendezvous             who uses it                              what is opened
    file:///proc/PID/fd/N  spawn, and mpirun on one host            an anonymous file that the starter holds; no port
    file:///path           by hand, on one host                     that file; no port
    tcp://host:port        by hand, or MASTER_ADDR and MASTER_PORT  that port, on that address only
    env://                 torchrun                                 nothing: torchrun's agent has a store
    (none)                 srun, and mpirun typed by the user       a port of rank 0's host, told where they meet

Where it is a port, rank 0 listens and the others connect to it.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from lockstep.errors import BadInput, LockstepError
from lockstep.torch_compat.distributed import FileStore, PrefixStore, Store, TCPStore
from lockstep.world.addresses import LOOPBACK, listener, listening_address, resolve, split_address
from lockstep.world.meeting import about_this_process, meet
from lockstep.world.meeting_point import MeetingPoint, meeting_point

if TYPE_CHECKING:
    from lockstep.world.place import Place


def open_store(place: Place, timeout: float) -> Store:
    """Return the store of this world; raise at once if the ranks could never find each other."""
    where = place.rendezvous
    if where is None and place.head is not None and place.port is not None:
        where = f"tcp://{place.head}:{place.port}"
    if where is None:
        return _derived(place, timeout)
    if where == "env://":
        store: Store = next(iter(rendezvous("env://", place.rank, place.size)))[0]
        # The agent's store outlives the ranks: those of a restart must not meet the ones before.
        return PrefixStore(f"lockstep/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    if where.startswith("file://"):
        return _file(Path(where.removeprefix("file://")), place)
    host, port = split_address(where)
    return _exact(place, host, port, timeout)


def _file(path: Path, place: Place) -> Store:
    if not path.parent.is_dir():
        raise BadInput(
            f"the rendezvous file {path} cannot be made, because the folder {path.parent} does not exist: create it, "
            "or choose another path"
        )
    return FileStore(str(path), place.size)


def _exact(place: Place, host: str, port: int, timeout: float) -> Store:
    """Rank 0 serves at exactly this address; the others wait for it."""
    if place.rank == 0:
        try:
            return _serve(listening_address(host), port, place.size, timeout)
        except OSError as error:
            raise BadInput(
                f"rank 0 cannot listen on {host}:{port}: {error.strerror or error}. Another program uses it, or a "
                "second process was started as rank 0: choose another port, or check the ranks"
            ) from error
    try:
        return _connect(resolve(host), port, place.size, timeout)
    except dist.DistError as error:
        raise LockstepError(
            f"rank {place.rank} found no rank 0 at {host}:{port} within {timeout:.0f} s: check that rank 0 was "
            "started, and that the port is open between the hosts"
        ) from error


def _derived(place: Place, timeout: float) -> Store:
    """Use a port that the ranks tell each other where they meet, see meeting_point.py.

    1. Rank 0 opens the store: on one host at any free port, else at one of those that follow from the job's name.
    2. The ranks meet, and rank 0 says where its store is.
    3. The others connect to it. They connect to nothing else: torch prints a page of errors for another program.
    """
    point = meeting_point(place)
    if place.rank == 0:
        store = _serve_somewhere(point, place, timeout)
        meet(place, lambda _: about_this_process() | {"store": store.port}, _nothing_to_check, timeout).leave()
        return store
    meeting = meet(place, lambda _: about_this_process(), _nothing_to_check, timeout)
    meeting.leave()
    return _connect(point.host or LOOPBACK, int(meeting.messages[0]["store"]), place.size, timeout)


def _serve_somewhere(point: MeetingPoint, place: Place, timeout: float) -> TCPStore:
    for port in reversed(point.ports or (0,)):  # the ranks meet at the first that is free
        with contextlib.suppress(OSError):
            return _serve(point.listen_at or LOOPBACK, port, place.size, timeout)
    raise LockstepError(
        f"none of the {len(point.ports)} ports derived from job {point.job} is free on {point.host} (first: "
        f"{point.ports[0]}): set MASTER_ADDR and MASTER_PORT for all ranks"
    )


def _nothing_to_check(_: object) -> None:
    return None


def _serve(address: str, port: int, size: int, timeout: float) -> TCPStore:
    # torch's store would listen on every interface; with a bound socket it listens on this address only.
    entrance = listener(address, port)
    return TCPStore(
        {"0.0.0.0": LOOPBACK, "::": "::1"}.get(address, address),  # noqa: S104 - its own client connects to it
        entrance.getsockname()[1],
        size,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=entrance.detach(),
    )


def _connect(address: str, port: int, size: int, timeout: float) -> TCPStore:
    return TCPStore(
        address,
        port,
        size,
        is_master=False,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
    )
