"""Join the world of this process: rendezvous with the other ranks, choose a device, create the process group."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import process_wide
from lockstep.errors import BadInput, LockstepError
from lockstep.world.addresses import LOOPBACK, address_towards, interface_of, is_loopback, resolve
from lockstep.world.detect import detect
from lockstep.world.host_watch import HostWatch, Vanished, say
from lockstep.world.place import Place, World
from lockstep.world.resources import choose_threads
from lockstep.world.worker_device import choose_device, visible_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.torch_compat.distributed import Store

JOIN_SECONDS = 300.0
COLLECTIVE_SECONDS = 1800.0


def join(
    *,
    device: str = "auto",
    backend: str | None = None,
    prefer_shared_memory: bool = False,
    threads: int | None = None,
    join_seconds: float = JOIN_SECONDS,
    place: Place | None = None,
    on_loss: Callable[[Vanished], None] = say,
) -> World:
    """Join the world in which this process was started, under any launcher, and return it.

    Use it as a context manager: at its end the connections are closed. A process without a launcher is a world of one
    rank. `place` overrides the environment. When another host vanishes, `on_loss` is called, and this process is ended.
    Threads not given are OMP_NUM_THREADS, else 1, under every launcher.
    """
    import torch

    process_wide.check()
    no_shm = process_wide.leave("shm")
    if backend == "shm" and no_shm:
        raise BadInput(
            f"backend shm is not registered, because {process_wide.VARIABLE} names it: remove one of the two"
        )
    place = place or detect(os.environ)
    store = None
    if place.size > 1:
        from lockstep.world.rendezvous import open_store

        store = open_store(place, join_seconds)
        place = _wait_for_ranks(store, place, join_seconds)
    chosen = choose_device(device, place, own=True)
    if store is not None and chosen != "cpu":
        _check_own_device(store, place, chosen)
    if threads is not None or not process_wide.leave("threads"):
        torch.set_num_threads(threads or choose_threads(os.environ)[0])
    if chosen != "cpu":
        torch.accelerator.set_device_index(torch.device(chosen).index)
    if backend is None and prefer_shared_memory and chosen == "cpu" and place.nodes == 1 and not no_shm:
        backend = "shm"
    watch = None
    if store is not None:
        address = _own_address(store, place) if place.nodes > 1 else LOOPBACK
        backend = _build_group(store, place, chosen, backend, address)
        if place.nodes > 1 and address is not None:
            hosts = [store.get(_host_key(rank)).decode() for rank in range(place.size)]
            watch = HostWatch.start(store, place.rank, hosts, address, on_loss)
    return World.at(place, device=chosen, threads=torch.get_num_threads(), backend=backend, watch=watch)


def _wait_for_ranks(store: Store, place: Place, seconds: float) -> Place:
    """Claim this rank, wait for all others, and find out which ranks share a host if the launcher does not say.

    1. Each rank increments its own counter: a second process with the same rank sees 2 and raises.
    2. Each rank writes its host, then waits for the hosts of all ranks.
    """
    import torch.distributed as dist

    if store.add(f"lockstep/claim/{place.rank}", 1) > 1:
        raise BadInput(
            f"rank {place.rank} of {place.size} is already taken: two processes were started as rank {place.rank}, or "
            f"the rendezvous ({place.rendezvous or place.job}) is left from an earlier run: check the ranks, or choose "
            "another rendezvous"
        )
    keys = [_host_key(rank) for rank in range(place.size)]
    store.set(keys[place.rank], host_identity())
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except dist.DistError as error:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        raise LockstepError(
            f"waited {seconds:.0f} s for {place.size} ranks; missing: {', '.join(missing)}. Check that they were "
            "started, with the same number of workers and the same rendezvous"
        ) from error
    if place.hosts_known:
        return place
    return locate(place, [store.get(key).decode() for key in keys])


def _check_own_device(store: Store, place: Place, device: str) -> None:
    """Refuse a device that another worker of this host has too: a launcher may show each worker one device."""
    mine = f"{place.node}/{visible_here(device)}"
    if store.add(f"lockstep/device/{mine}", 1) > 1:
        raise BadInput(
            f"rank {place.rank} would use {visible_here(device)}, which another worker of this host uses already: give "
            "each worker a device of its own (srun --gpus-per-task=1), or let all see all devices"
        )


def locate(place: Place, hosts: list[str]) -> Place:
    """Return the place with local rank and node, from the hosts of all ranks in rank order."""
    distinct = list(dict.fromkeys(hosts))
    mine = hosts[place.rank]
    return replace(
        place,
        local_rank=hosts[: place.rank].count(mine),
        local_size=hosts.count(mine),
        node=distinct.index(mine),
        nodes=len(distinct),
    )


def host_identity() -> str:
    """Return a text that is the same for two processes exactly if they share a loopback interface."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        network = str(Path("/proc/self/ns/net").readlink())
    except OSError:
        boot = network = "unknown"
    return f"{socket.gethostname()}/{boot}/{network}"


def _host_key(rank: int) -> str:
    return f"lockstep/host/{rank}"


def _own_address(store: Store, place: Place) -> str | None:
    """Return the address at which other hosts reach this one; None if no route is known.

    It is the one on the way to the head node. Where that is a loopback address (the head's own name often has one), it
    is the one on the way to a rank that has another.
    """
    if place.head is None:
        return None
    mine = address_towards(resolve(place.head)) or ""
    keys = [f"lockstep/address/{rank}" for rank in range(place.size)]
    store.set(keys[place.rank], "" if mine and is_loopback(mine) else mine)
    others = [text for key in keys if (text := store.get(key).decode())]
    if mine and not is_loopback(mine):
        return mine
    return address_towards(others[0]) if others else None


def _build_group(store: Store, place: Place, device: str, backend: str | None, address: str | None) -> str:
    import torch.distributed as dist

    chosen = backend or dist.get_default_backend_for_device(device.partition(":")[0])
    if "gloo" in chosen and "GLOO_SOCKET_IFNAME" not in os.environ and not process_wide.leave("interface"):
        if place.nodes > 1 and place.head is None:
            raise BadInput(f"the ranks are on {place.nodes} hosts: use --rendezvous host:port, not a file")
        # gloo chooses its interface by the host name, which often resolves to an address that is not this host's. The
        # route to the head node is known to work; on one host nothing leaves the loopback interface.
        if address is not None and (name := interface_of(address)) is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    dist.init_process_group(
        chosen,
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )
    return chosen
