"""How the ranks of a world find each other: through one store, opened as the launcher allows.

    rendezvous             who uses it                              what is opened
    file:///proc/PID/fd/N  spawn, and mpirun on one host            an anonymous file that the starter holds; no port
    file:///path           by hand, on one host                     that file; no port
    tcp://host:port        by hand, or MASTER_ADDR and MASTER_PORT  that port, on that address only
    env://                 torchrun                                 nothing: torchrun's agent has a store
    (none)                 srun, and mpirun typed by the user       a port derived from the job, on rank 0's host

Where it is a port, rank 0 listens and the others connect to it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from lockstep.errors import BadInput, LockstepError
from lockstep.torch_compat.distributed import FileStore, PrefixStore, Store, TCPStore
from lockstep.world.addresses import (
    CANDIDATES,
    candidate_ports,
    job_of_parent,
    listener,
    listening_address,
    resolve,
    split_address,
)

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
    """Use a port that follows from the job's name, so that no rank has to tell another.

    1. All ranks compute the same list of candidate ports.
    2. Rank 0 takes the first free one and writes the job's name into its store.
    3. The others try the ports of the list until a store answers with that name; other programs, and the stores of
       other jobs, do not.
    """
    if place.nodes > 1 and (place.head is None or place.job is None):
        raise BadInput(
            f"{place.launcher} started {place.size} ranks on {place.nodes} hosts, but does not say where rank 0 is: "
            "set MASTER_ADDR (its host name) and MASTER_PORT for all ranks, e.g. mpirun -x MASTER_ADDR=... "
            "-x MASTER_PORT=..."
        )
    head = place.head if place.nodes > 1 and place.head else "127.0.0.1"
    address, job = resolve(head), place.job or job_of_parent()
    ports = list(candidate_ports(job))
    if place.rank == 0:
        for port in ports:
            with contextlib.suppress(OSError):
                store = _serve(listening_address(head), port, place.size, timeout)
                store.set("lockstep/job", job)
                return store
        raise LockstepError(
            f"none of the {CANDIDATES} ports derived from job {job} is free on {head} (first: {ports[0]}): "
            "set MASTER_ADDR and MASTER_PORT for all ranks"
        )
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for port in ports:
            with contextlib.suppress(dist.DistError, OSError):
                if _listens(address, port):
                    store = _connect(address, port, place.size, timeout=2.0)
                    store.set_timeout(timedelta(seconds=2))
                    if store.get("lockstep/job") == job.encode():
                        store.set_timeout(timedelta(seconds=timeout))
                        return store
        time.sleep(0.02)
    raise LockstepError(
        f"rank {place.rank} found no rank 0 of job {job} on {head} within {timeout:.0f} s (ports {ports[0]}, "
        f"{ports[1]}, ...): check that rank 0 is running, and that these ports are open between the hosts"
    )


def _serve(address: str, port: int, size: int, timeout: float) -> TCPStore:
    # torch's store would listen on every interface; with a bound socket it listens on this address only.
    entrance = listener(address, port)
    return TCPStore(
        {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address),  # noqa: S104 - its own client connects to it
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=entrance.detach(),
    )


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1.0):
        return True
    return False


def _connect(address: str, port: int, size: int, timeout: float) -> TCPStore:
    return TCPStore(
        address,
        port,
        size,
        is_master=False,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
    )
