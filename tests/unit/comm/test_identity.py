"""Ranks that cannot share memory are told so, with both sides named."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from lockstep.comm.identity import Identity, start_time, why_not_shared

FIRST = Identity(rank=0, host="a", boot="x", namespace="pid:[1]", user=7, pid=10, started=100)


def test_ranks_of_one_host_may_share() -> None:
    assert why_not_shared([FIRST, replace(FIRST, rank=1, pid=11)]) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"boot": "y", "host": "b"}, ("rank 1 runs on host b", "rank 0 on host a", "gloo")),
        ({"namespace": "pid:[2]"}, ("rank 1 is in process namespace pid:[2]", "rank 0 in pid:[1]", "gloo")),
        ({"user": 8}, ("rank 1 runs as user 8", "rank 0 as user 7")),
    ],
)
def test_others_may_not(change: dict[str, str], words: tuple[str, ...]) -> None:
    text = why_not_shared([FIRST, replace(FIRST, rank=1, **change)])  # type: ignore[arg-type]
    assert text is not None
    assert all(word in text for word in words)


def test_an_identity_survives_the_store() -> None:
    mine = Identity.mine(3)
    assert Identity.loads(mine.dumps()) == mine
    assert mine.pid == os.getpid()
    assert mine.started == start_time(os.getpid())


def test_a_process_that_is_gone_has_no_start() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert start_time(child) is None  # a zombie
    os.waitpid(child, 0)
    assert start_time(child) is None
