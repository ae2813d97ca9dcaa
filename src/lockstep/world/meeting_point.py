"""Where ranks meet without torch: a socket of this host without a port and without a file, or a port of rank 0's host.

On one host it has an abstract name of Linux, and both ends must belong to one user.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.errors import BadInput
from lockstep.world.addresses import candidate_ports, job_of_parent, listener, listening_address, resolve, split_address

if TYPE_CHECKING:
    from lockstep.world.place import Place

ANSWER_SECONDS = 5.0
"""In which rank 0 says which job it is; another program on that port does not."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A host that is gone without a word is noticed after 25 seconds."""


@dataclass(frozen=True, kw_only=True)
class MeetingPoint:
    """Where ranks meet."""

    job: str
    """The same on all ranks, and on no others."""
    name: str = ""
    """The name of a socket of this host; empty: it is a port."""
    host: str = ""
    """The address of rank 0."""
    listen_at: str = ""
    """Where rank 0 listens on its host: at that address, or at all, see `listening_address`."""
    ports: tuple[int, ...] = ()
    """The ports that rank 0 may listen on, the first free one is used."""

    def __str__(self) -> str:
        if self.name:
            return f"job {self.job}, on this host"
        return f"{self.host}:{self.ports[0]}" + (f" or one of {len(self.ports) - 1} more" if self.ports[1:] else "")


def meeting_point(place: Place) -> MeetingPoint:
    """Return where the ranks of a world meet, as their launcher allows; all of them come to the same answer."""
    where = place.rendezvous
    if where is not None and where.startswith("file://"):
        return _on_this_host(where)
    if where is None and place.head is not None and place.port is not None:
        where = f"tcp://{place.head}:{place.port}"
    if where is not None and where != "env://":
        host, port = split_address(where)
        return _at_ports(f"{host}:{port}", host, (port,))
    job = place.job
    if where == "env://":  # runs that torchrun gives no name of their own are told apart by the port of their store
        job = f"{place.job}/{place.head}:{place.port}"
    if place.nodes == 1 and place.hosts_known:
        return _on_this_host(job or job_of_parent())
    if place.head is None or job is None:
        raise BadInput(
            f"{place.launcher} started {place.size} ranks on several hosts, but does not say where rank 0 is: set "
            "MASTER_ADDR (its host name) and MASTER_PORT for all ranks, e.g. mpirun -x MASTER_ADDR=... -x "
            "MASTER_PORT=..."
        )
    return _at_ports(job, place.head, tuple(candidate_ports(job)))


def _at_ports(job: str, head: str, ports: tuple[int, ...]) -> MeetingPoint:
    return MeetingPoint(job=job, host=resolve(head), listen_at=listening_address(head), ports=ports)


def _on_this_host(job: str) -> MeetingPoint:
    word = hashlib.sha256(f"{os.getuid()}/{job}".encode()).hexdigest()
    return MeetingPoint(job=job, name=f"\0lockstep-{word[:40]}")


def listen(point: MeetingPoint) -> socket.socket:
    """Return what rank 0 listens with."""
    if point.name:
        entrance = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            entrance.bind(point.name)
        except OSError as error:
            entrance.close()
            raise BadInput(
                f"another process is rank 0 already ({point}): two processes were started as rank 0. Check the ranks"
            ) from error
        entrance.listen(1024)
        return entrance
    for port in point.ports:
        with contextlib.suppress(OSError):
            return listener(point.listen_at, port)
    raise BadInput(
        f"rank 0 cannot listen on {point}: another program uses it, or it is no address of this host. Choose another "
        "port with MASTER_PORT, the same for all ranks, or check MASTER_ADDR"
    )


def connections(point: MeetingPoint) -> Iterator[socket.socket]:
    """Yield a connection to whoever listens there."""
    if point.name:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(point.name)
        except OSError:
            end.close()
            return
        if same_user(end):
            yield end
        else:
            end.close()
        return
    for port in point.ports:
        with contextlib.suppress(OSError):
            end = socket.create_connection((point.host, port), timeout=ANSWER_SECONDS)
            keep_alive(end)
            yield end


def same_user(end: socket.socket) -> bool:
    """Say whether the other end of a socket of this host belongs to this user."""
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1]) == os.getuid()


def keep_alive(end: socket.socket) -> None:
    """Have the kernel notice a host that is gone."""
    if end.family == socket.AF_UNIX:
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        end.setsockopt(socket.IPPROTO_TCP, option, value)
