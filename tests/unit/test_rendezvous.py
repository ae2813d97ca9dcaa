"""How ranks find the store of their job: past other programs at its ports, and without a word about them."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lockstep.torch_compat.distributed import Store
from lockstep.world.addresses import candidate_ports, listener
from lockstep.world.place import Place
from lockstep.world.rendezvous import open_store

SECONDS = 20.0


def places(nodes: int) -> list[Place]:
    """Two ranks as srun starts them; on several hosts by ports, which here are all of this host."""
    job = uuid.uuid4().hex
    return [
        Place(
            launcher="srun",
            rank=rank,
            size=2,
            local_rank=0 if nodes > 1 else rank,
            local_size=2 // nodes,
            node=rank if nodes > 1 else 0,
            nodes=nodes,
            head="127.0.0.1",
            job=job,
        )
        for rank in range(2)
    ]


@contextmanager
def hanging_up(port: int) -> Iterator[None]:
    """Another program that listens there and closes every connection, as a server does that was sent nonsense."""

    def serve(entrance: socket.socket) -> None:
        while True:
            try:
                entrance.accept()[0].close()
            except OSError:
                return

    entrance = listener("127.0.0.1", port)
    thread = threading.Thread(target=serve, args=(entrance,))
    thread.start()
    try:
        yield
    finally:
        entrance.shutdown(socket.SHUT_RDWR)
        entrance.close()
        thread.join()


def opened(ranks: list[Place]) -> list[Store]:
    """Open the store of each rank at once; rank 0 comes last, so that the other one looks for it."""
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(open_store, ranks[1], SECONDS)
        pool.submit(threading.Event().wait, 0.3).result()
        return [open_store(ranks[0], SECONDS), other.result()]


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_share_a_store(nodes: int) -> None:
    first, second = opened(places(nodes))
    first.set("asked", "answered")
    assert second.get("asked") == b"answered"


def test_another_program_at_a_port_of_the_job_is_passed_over_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = places(2)
    taken = list(candidate_ports(str(ranks[0].job)))
    with hanging_up(taken[0]), hanging_up(taken[-1]):
        first, second = opened(ranks)
        first.set("asked", "answered")
        assert second.get("asked") == b"answered"
    assert capfd.readouterr().err == ""
