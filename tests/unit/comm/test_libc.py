"""Flags count, wake and time out."""

from __future__ import annotations

import mmap
import threading

from lockstep.comm import libc


def _flag() -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, 4096)
    address = libc.address_of(memoryview(memory))
    libc.init(address)
    return memory, address


def test_a_flag_counts() -> None:
    memory, flag = _flag()
    assert libc.trywait(flag) != 0
    libc.post(flag)
    libc.post(flag)
    assert [libc.trywait(flag) for _ in range(2)] == [0, 0]
    assert libc.trywait(flag) != 0
    assert memory is not None


def test_a_sleeper_is_woken_or_gives_up() -> None:
    memory, flag = _flag()
    assert not libc.timed_wait(flag, 0.01)
    timer = threading.Timer(0.05, libc.post, (flag,))
    timer.start()
    assert libc.timed_wait(flag, 30)
    timer.join()
    assert memory is not None
