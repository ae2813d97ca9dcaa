"""What an exchange promises: means over lanes, summed in tree order, bit for bit, wherever the partials are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.arena import Arena
from lockstep.comm.combine import BLOCK_BYTES
from lockstep.comm.group import Group
from lockstep.exchange.base import Exchange
from lockstep.exchange.collective import Collective
from lockstep.exchange.hosts import ArenaPerHost, carriers, host_arena, ranks_by_host
from lockstep.exchange.in_process import InProcess
from lockstep.exchange.shared_arena import SharedArena
from lockstep.lanes.tree import Node, children
from lockstep.mesh import Mesh
from tests.contract.cases import made
from tests.contract.lane_cases import world_of
from tests.ranks import Ranks

Hosts = list[list[int]]
HOSTS: dict[str, Hosts] = {
    "2x1": [[0], [1]],
    "2x2": [[0, 1], [2, 3]],
    "1+2": [[0], [1, 2]],
    "2+1": [[0, 1], [2]],
    "2x4": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "3 hosts": [[0, 1], [2], [3]],
    "dealt in turn": [[0, 2], [1, 3]],
}


LENGTHS = ((BLOCK_BYTES // 4 + 1024, torch.float32), (3072, torch.float64), (2048, torch.bfloat16))
"""Of a worker's slice; the first is more than what is added up at a time."""


def lane_value(lane: int, numel: int, dtype: torch.dtype) -> Tensor:
    values = made((numel,), dtype, 100 + lane)
    values[::7] = -0.0
    return values


def summed(node: Node, numel: int, dtype: torch.dtype) -> Tensor:
    """The definition."""
    if node.hi - node.lo == 1:
        return lane_value(node.lo, numel, dtype)
    left, right = children(node)
    return summed(left, numel, dtype) + summed(right, numel, dtype)


def check(exchange: Exchange, lanes: int) -> str:
    """One step's calls, twice, on two buffers as on two sections of a model."""
    workers, rank = exchange.workers, exchange.rank
    buffers = []
    for length, dtype in LENGTHS:
        flat = exchange.weights(length * workers, dtype, "cpu")
        if rank == 0:
            flat.copy_(made((flat.numel(),), dtype, 5))
        exchange.broadcast_weights(flat)
        assert torch.equal(flat, made((flat.numel(),), dtype, 5))
        buffers.append((length, flat, exchange.partials(flat.numel(), dtype, "cpu")))
    for _ in range(2):
        for _, flat, partials in buffers:
            for node, partial in zip(exchange.nodes, partials, strict=True):
                partial.copy_(summed(node, flat.numel(), flat.dtype))
        numbers = torch.zeros(workers, dtype=torch.float64)
        numbers[rank] = rank + 0.5
        assert exchange.sum_disjoint(numbers).tolist() == [r + 0.5 for r in range(workers)]
        for length, flat, partials in buffers:
            part = range(rank * length, (rank + 1) * length)
            expected = summed(Node(0, lanes), flat.numel(), flat.dtype) / 3.0
            reduced = exchange.mean(partials, part, 3.0)
            assert torch.equal(reduced, expected[part.start : part.stop])
            assert not (torch.signbit(reduced) & (reduced == 0)).any()
            whole = exchange.whole_gradient(partials, reduced.mul_(2))
            assert whole is None or torch.equal(whole, expected * 2)
            flat[part.start : part.stop] = reduced
            exchange.gather_weights(flat)
            exchange.barrier()
            assert torch.equal(flat, expected * 2)
            exchange.barrier()
    return exchange.name


def room(lanes: int, workers: int) -> int:
    return (1 + 2 * lanes) * sum(Arena.room(length * workers, dtype) for length, dtype in LENGTHS)


def over_hosts(rank: int, size: int, hosts: Hosts, lanes: int) -> tuple[str, Hosts]:
    mine = next(ranks for ranks in hosts if rank in ranks)
    group = Group.everyone()
    name = check(ArenaPerHost(host_arena(group, mine, room(lanes, size)), lanes, group, hosts), lanes)
    return name, ranks_by_host(group, next(node for node, ranks in enumerate(hosts) if rank in ranks))


def in_arena(rank: int, size: int, lanes: int) -> str:
    assert dist.group.WORLD is not None
    return check(SharedArena(Arena(dist.group.WORLD, room(lanes, size)), lanes), lanes)


def by_collectives(rank: int, size: int, lanes: int) -> str:
    return check(Collective(lanes, Group.everyone()), lanes)


@pytest.fixture(scope="module", params=[2, 3, 4, 8])
def gloo(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, "gloo") as started:
        yield started


def test_an_arena_per_host(gloo: Ranks) -> None:
    for hosts in HOSTS.values():
        if sum(map(len, hosts)) == gloo.size:
            for lanes in (8, 11):
                name = "arena + gloo" if max(map(len, hosts)) > 1 else "messages over gloo"
                assert gloo.run(over_hosts, hosts, lanes) == [(name, hosts)] * gloo.size


def test_collectives(gloo: Ranks) -> None:
    for lanes in (8, 11):
        assert set(gloo.run(by_collectives, lanes)) == {"collectives over gloo"}


@pytest.mark.parametrize("size", [2, 3])
def test_the_arena_of_a_host(size: int) -> None:
    with Ranks(size) as started:
        for lanes in (8, 11):
            assert set(started.run(in_arena, lanes)) == {"arena"}


def on_a_mesh(rank: int, size: int, backend: str, lanes: int, stages: int) -> list[str]:
    """Every exchange among the replicas of this rank's stage, while the other stages do the same."""
    mesh = Mesh.over(world_of(rank, size, backend, [size]), stages=stages)
    group = mesh.across_replicas
    assert (mesh.replica, mesh.stage) == divmod(rank, stages)
    assert group.ranks == tuple(range(mesh.stage, size, stages))
    assert mesh.across_stages.ranks == tuple(range(rank - mesh.stage, rank - mesh.stage + stages))
    names = [check(Collective(lanes, group), lanes)]
    if backend == "shm":
        assert group.process_group is not None
        names.append(check(SharedArena(Arena(group.process_group, room(lanes, group.size)), lanes), lanes))
    else:
        hosts = [[0], list(range(1, group.size))]  # positions in the group, not ranks of the world
        mine = next(ranks for ranks in hosts if group.rank in ranks)
        arena = host_arena(group, mine, room(lanes, group.size))
        names.append(check(ArenaPerHost(arena, lanes, group, hosts), lanes))
    return names


@pytest.mark.parametrize("backend", ["gloo", "shm"])
@pytest.mark.parametrize(("size", "stages"), [(4, 2), (6, 2)])
def test_replicas_by_stages(backend: str, size: int, stages: int) -> None:
    with Ranks(size, backend) as started:
        names = started.run(on_a_mesh, backend, 8, stages)
    over_gloo = "arena + gloo" if size // stages > 2 else "messages over gloo"  # of two replicas each has its own host
    kind = "arena" if backend == "shm" else over_gloo
    assert names == [[f"collectives over {backend}", kind]] * size


def test_in_process() -> None:
    assert check(InProcess(8), 8) == "in process"


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_every_slice_is_carried_once_on_each_host(hosts: Sequence[Sequence[int]]) -> None:
    workers = sum(map(len, hosts))
    for ranks in hosts:
        found = carriers(ranks, workers)
        assert sorted(found) == list(range(workers))
        assert set(found.values()) == set(ranks)
        assert all(found[rank] == rank for rank in ranks)
        loads = [list(found.values()).count(rank) for rank in ranks]
        assert max(loads) - min(loads) <= 1
