"""How much memory the workers of a host share: as much as their exchange's partials take, whatever it keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from lockstep.comm.arena import Arena
from lockstep.comm.exact import Collective, Exchange, SharedArena
from lockstep.comm.hosts import ArenaPerHost
from lockstep.lanes.layout import lay_out
from lockstep.lanes.tree import Node
from lockstep.strategies.base import Training
from lockstep.strategies.exact import arena_bytes


def training(lanes: int) -> Training:
    layers = [nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7)) for _ in range(20)]
    model = nn.Sequential(nn.Linear(300, 7), *layers)
    return Training(model=model, optimizer=SGD, loss=lambda model, batch: torch.zeros(()), seed=0, lanes=lanes)


def test_what_each_exchange_holds() -> None:
    whole = [[Node(0, 4)], [Node(4, 8)]]
    assert SharedArena.held(8, 2) == [[Node(0, 2), Node(2, 4)], [Node(4, 6), Node(6, 8)]]
    assert ArenaPerHost.held(8, 2) == Collective.held(8, 2) == whole


@pytest.mark.parametrize(
    ("exchange", "workers", "here"),
    [(SharedArena, 2, None), (SharedArena, 3, None), (ArenaPerHost, 4, [0, 1]), (ArenaPerHost, 4, [3])],
)
@pytest.mark.parametrize("lanes", [4, 8, 11])
def test_there_is_room_for_weights_and_partials(
    exchange: type[Exchange], workers: int, here: list[int] | None, lanes: int
) -> None:
    asked = training(lanes)
    floats = [t for t in (*asked.model.parameters(), *asked.model.buffers()) if t.is_floating_point()]
    held = exchange.held(lanes, workers)
    copies = 1 + sum(len(held[rank]) for rank in here or range(workers))
    for keys in ([0] * len(floats), list(range(len(floats)))):  # one optimizer group, and one for every tensor
        sections = lay_out([tuple(tensor.shape) for tensor in floats], keys, workers)
        need = copies * sum(Arena.room(section.numel, torch.float32) for section in sections)
        assert need <= arena_bytes(asked, exchange, workers, here)
    assert arena_bytes(asked, exchange, workers, here) % copies == 0, "as many copies as partials, and the weights"
