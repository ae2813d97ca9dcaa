"""Ranks that meet without torch: all get all messages, or all get the same reason; a rank that is lost is named."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.errors import BadInput, LockstepError
from lockstep.world.addresses import candidate_ports, free_port, is_free, listener, reserved_port
from lockstep.world.meeting import Check, Meeting, meet
from lockstep.world.meeting_point import meeting_point
from lockstep.world.place import Place

SECONDS = 20.0
Kind = Callable[..., Place]


def by_name(rank: int, size: int = 3, **fields: Any) -> Place:
    """A rank of one host, as spawn starts it."""
    return Place(launcher="spawn", rank=rank, size=size, local_rank=rank, local_size=size, **fields)


def by_port(rank: int, size: int = 3, **fields: Any) -> Place:
    """A rank that was started by hand, with MASTER_ADDR and MASTER_PORT."""
    return Place(launcher="manual", rank=rank, size=size, local_rank=rank, local_size=size, hosts_known=False, **fields)


@pytest.fixture(params=["name", "port"])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "name":
        job = uuid.uuid4().hex
        return lambda rank, size=3: by_name(rank, size, rendezvous=f"file:///{job}")
    port = free_port()
    return lambda rank, size=3: by_port(rank, size, head="127.0.0.1", port=port)


def none(_: list[dict[str, Any]]) -> None:
    return None


def together(places: list[Place], check: Check = none, seconds: float = SECONDS) -> list[Meeting | Exception]:
    """Let all of these meet, a thread each; return what each of them got."""
    got: list[Meeting | Exception] = [RuntimeError("no answer")] * len(places)

    def one(number: int, place: Place) -> None:
        try:
            got[number] = meet(place, lambda at: {"pid": number, "host": "h", "at": at}, check, seconds)
        except Exception as error:
            got[number] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def met(got: list[Meeting | Exception]) -> list[Meeting]:
    assert all(isinstance(one, Meeting) for one in got), got
    return [one for one in got if isinstance(one, Meeting)]


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_get_all_messages(kind: Kind) -> None:
    meetings = met(together([kind(2), kind(0), kind(1)]))
    assert {json.dumps(one.messages) for one in meetings} == {json.dumps(meetings[0].messages)}
    assert [message["pid"] for message in meetings[0].messages] == [1, 2, 0]
    assert {message["at"] for message in meetings[0].messages} in ({""}, {"127.0.0.1"})
    for one in meetings:
        one.leave()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_rank_that_is_lost_is_named_by_all_others(kind: Kind, gone: int) -> None:
    meetings = met(together([kind(0), kind(1), kind(2)]))
    lost: list[tuple[int, int]] = []
    for rank, one in enumerate(meetings):
        one.watch(lambda other, rank=rank: lost.append((rank, other)))  # type: ignore[misc]
    meetings[gone].leave(done=False)
    others = {(rank, gone) for rank in range(3) if rank != gone}
    eventually(lambda: set(lost) >= others)
    for one in meetings:
        one.leave(done=False)


def test_ranks_that_are_done_leave_together(kind: Kind) -> None:
    meetings = met(together([kind(0), kind(1), kind(2)]))
    lost: list[int] = []
    left: list[int] = []
    for one in meetings:
        one.watch(lost.append, left.append)
    gone: list[int] = []

    def leave(rank: int) -> None:
        meetings[rank].leave()
        gone.append(rank)

    threads = [threading.Thread(target=leave, args=(rank,)) for rank in (1, 0, 2)]
    threads[0].start()
    eventually(lambda: left == [1])
    threads[1].start()
    time.sleep(0.1)
    assert gone == [], "rank 2 is not done: it may still read from the others"
    threads[2].start()
    for thread in threads:
        thread.join()
    assert sorted(gone) == [0, 1, 2]
    eventually(lambda: sorted(left) == [0, 0, 1, 2])
    assert lost == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([(0, 2), (1, 3)], "rank 1 says that there are 3 ranks, rank 0 that there are 2"),
        ([(0, 3), (1, 3), (1, 3)], "rank 1 of 3 is taken: two processes were started as rank 1"),
    ],
)
def test_ranks_that_do_not_fit(kind: Kind, ranks: list[tuple[int, int]], words: str) -> None:
    got = together([kind(rank, size) for rank, size in ranks])
    for one in got:
        assert isinstance(one, BadInput)
        assert words in str(one)


def test_a_refusal_reaches_all(kind: Kind) -> None:
    got = together([kind(0), kind(1), kind(2)], lambda messages: f"{len(messages)} are too many")
    assert [(type(one), str(one)) for one in got] == [(BadInput, "3 are too many")] * 3


def test_a_rank_that_never_comes_is_named(kind: Kind) -> None:
    got = together([kind(0), kind(2)], seconds=0.5)
    for one in got:
        assert isinstance(one, LockstepError)
        assert "waited 0 s for 3 ranks; missing: 1. Check that they were started" in str(one)


def test_nobody_is_rank_0(kind: Kind) -> None:
    (got,) = together([kind(1)], seconds=0.2)
    assert "rank 1 of 3 found no rank 0 within 0 s" in str(got)


def test_two_processes_are_rank_0() -> None:
    job = uuid.uuid4().hex
    places = [by_name(0, 2, rendezvous=f"file:///{job}")] * 2
    got = together(places, seconds=0.5)
    assert any("another process is rank 0 already" in str(one) for one in got), got


def test_a_port_that_is_taken() -> None:
    with listener("127.0.0.1", 0) as other:
        (got,) = together([by_port(0, head="127.0.0.1", port=other.getsockname()[1])])
    assert isinstance(got, BadInput)
    assert "another program uses it" in str(got)
    assert "MASTER_PORT" in str(got)


def test_other_programs_on_the_ports_of_a_job_are_passed_by() -> None:
    """One says something else, one never answers: rank 0 takes the third port, and rank 1 finds it."""
    job = uuid.uuid4().hex
    ports = list(candidate_ports(job))
    with listener("127.0.0.1", ports[0]) as talker, listener("127.0.0.1", ports[1]):
        threading.Thread(target=_talk, args=(talker,), daemon=True).start()
        places = [by_port(rank, 2, head="127.0.0.1", job=job) for rank in range(2)]
        assert meeting_point(places[0]).ports == tuple(ports)
        meetings = met(together(places))
    for one in meetings:
        one.leave()


def _talk(talker: socket.socket) -> None:
    end, _ = talker.accept()
    with end:
        end.sendall(b"220 welcome to another service\r\n")


def test_where_ranks_meet() -> None:
    """On one host there is no port; where the launcher does not say which host, it is asked for."""
    job = uuid.uuid4().hex
    assert meeting_point(by_name(1, job=job)).name.startswith("\0lockstep-")
    runs = [Place(launcher="torchrun", rendezvous="env://", job="none", head="h", port=port) for port in (1, 2)]
    assert meeting_point(runs[0]).name != meeting_point(runs[1]).name
    assert meeting_point(by_port(1, head="127.0.0.1", port=7)).ports == (7,)
    with pytest.raises(BadInput, match="does not say where rank 0 is: set MASTER_ADDR"):
        meeting_point(Place(launcher="openmpi", rank=1, size=4, local_size=2, nodes=2, hosts_known=False))


def test_a_reserved_port_is_not_given_to_others_and_can_be_taken() -> None:
    port = reserved_port()
    assert port not in {free_port() for _ in range(2000)}
    assert is_free(port)
    with listener("127.0.0.1", port):
        assert not is_free(port)
