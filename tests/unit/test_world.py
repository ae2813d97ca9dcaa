"""Threads, places and the rendezvous arithmetic: pure, no process started."""

from __future__ import annotations

import pytest

from lockstep import World
from lockstep.errors import BadInput
from lockstep.launch.srun import cpus_per_task
from lockstep.world.addresses import (
    FIRST_PORT,
    LAST_PORT,
    address_towards,
    candidate_ports,
    interface_of,
    resolve,
    split_address,
)
from lockstep.world.join import join, locate
from lockstep.world.place import Place
from lockstep.world.resources import choose_threads, idle_cpus, local_workers, read_threads
from lockstep.world.worker_device import choose_device


@pytest.mark.parametrize(
    ("env", "threads", "why"),
    [
        ({}, 1, "the default, on any machine and for any number of workers"),
        ({"OMP_NUM_THREADS": "3"}, 3, "OMP_NUM_THREADS=3"),
        ({"SLURM_CPUS_PER_TASK": "7"}, 1, "the default, on any machine and for any number of workers"),
        ({"SLURM_CPUS_PER_TASK": "7", "OMP_NUM_THREADS": "2"}, 2, "OMP_NUM_THREADS=2"),
    ],
)
def test_threads_that_nobody_gave(env: dict[str, str], threads: int, why: str) -> None:
    assert choose_threads(env) == (threads, why)


@pytest.mark.parametrize(
    ("text", "cpus", "local_size", "threads"),
    [("3", 16, 2, 3), ("all", 16, 1, 16), ("all", 16, 3, 5), ("all", 2, 4, 1)],
)
def test_threads_as_typed(text: str, cpus: int, local_size: int, threads: int) -> None:
    assert read_threads(text, cpus, local_size) == threads


@pytest.mark.parametrize("text", ["0", "many", "-1", "\u00b2"])
def test_threads_refused(text: str) -> None:
    with pytest.raises(BadInput, match=f"found OMP_NUM_THREADS='{text}', expected a number of threads"):
        choose_threads({"OMP_NUM_THREADS": text})
    with pytest.raises(BadInput, match=f"found --threads {text}, expected a number from 1 up, or all"):
        read_threads(text, 8, 1)


def test_idle_cpus_are_told() -> None:
    assert idle_cpus(1, 16, local_workers(3, 2)).startswith(
        "computing on 2 of 16 CPUs, one thread for each worker: more"
    )
    assert idle_cpus(1, 2, local_workers(2, None)) == idle_cpus(1, 2, 8) == idle_cpus(4, 16, 2) == ""


def test_slurm_is_asked_for_the_allocated_cpus_and_enough_for_the_threads() -> None:
    assert [cpus_per_task(*case) for case in ((None, ""), (1, "4"), (8, "4"), (1, ""), (2, "two"))] == [
        None,
        4,
        8,
        1,
        2,
    ]


def test_locate_learns_hosts_from_the_ranks() -> None:
    hosts = ["a", "b", "a", "b", "b"]
    place = Place(launcher="manual", rank=4, size=5, local_size=5, local_rank=4, hosts_known=False)
    located = locate(place, hosts)
    assert (located.local_rank, located.local_size, located.node, located.nodes) == (2, 3, 1, 2)


def test_join_alone_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with join(device="cpu", threads=1, place=Place(launcher="inline")) as world:
        assert (world.rank, world.size, world.device, world.backend) == (0, 1, "cpu", None)
    assert World.alone().size == 1


def test_no_accelerator_here_is_said() -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    assert choose_device("auto", Place(launcher="inline")) == "cpu"
    with pytest.raises(BadInput, match="no accelerator"):
        choose_device("cuda", Place(launcher="inline"))


def test_ports_follow_from_the_job_and_spread() -> None:
    first, again, other = list(candidate_ports("1.0")), list(candidate_ports("1.0")), list(candidate_ports("2.0"))
    assert first == again
    assert not set(first) & set(other)
    assert all(FIRST_PORT <= port < LAST_PORT for port in first)
    assert len(set(first)) == len(first)


@pytest.mark.parametrize(
    ("text", "address"),
    [("tcp://a:1", ("a", 1)), ("a.b:29500", ("a.b", 29500)), ("[::1]:80", ("::1", 80))],
)
def test_split_address(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["host", ":1", "host:", "host:99999", "host:x", "host:0"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(BadInput, match="neither host:port nor file"):
        split_address(text)


def test_unresolvable_head_is_an_error_not_localhost() -> None:
    with pytest.raises(BadInput, match="does not resolve"):
        resolve("no-such-host.invalid")


def test_interface_of_the_loopback() -> None:
    assert interface_of(address_towards("127.0.0.1") or "") == "lo"
