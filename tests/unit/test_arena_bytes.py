"""How much memory the workers of a host share: one copy of the weights and all of their partials."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from lockstep.comm.arena import Arena
from lockstep.comm.segment_layout import PAGE
from lockstep.exchange.base import Exchange
from lockstep.exchange.host_traffic import Signals
from lockstep.lanes.flat_layout import lay_out
from lockstep.lanes.tree import Node
from lockstep.settings import Settings
from lockstep.strategies.arena_size import arena_bytes
from lockstep.strategies.base import Training


def training(lanes: int) -> Training:
    layers = [nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7)) for _ in range(20)]
    model = nn.Sequential(nn.Linear(300, 7), *layers)
    settings = Settings(lanes=lanes)
    return Training(model=model, optimizer=SGD, loss=lambda model, batch: torch.zeros(()), settings=settings)


def test_what_a_worker_holds() -> None:
    assert Exchange.held(8, 2) == [[Node(0, 4)], [Node(4, 8)]]
    assert Exchange.held(8, 3)[1] == [Node(2, 4), Node(4, 5)]


@pytest.mark.parametrize(
    ("workers", "here"),
    [(2, None), (3, None), (4, [0, 1]), (4, [3])],
)
@pytest.mark.parametrize("lanes", [4, 8, 11])
def test_there_is_room_for_weights_and_partials(workers: int, here: list[int] | None, lanes: int) -> None:
    asked = training(lanes)
    floats = [t for t in (*asked.model.parameters(), *asked.model.buffers()) if t.is_floating_point()]
    held = Exchange.held(lanes, workers)
    copies = 1 + sum(len(held[rank]) for rank in here or range(workers))
    for keys in ([0] * len(floats), list(range(len(floats)))):  # one optimizer group, and one for every tensor
        sections = lay_out([tuple(tensor.shape) for tensor in floats], keys, workers)
        need = copies * sum(Arena.room(section.numel, torch.float32) for section in sections)
        assert need <= arena_bytes(asked, workers, here)
    signals = 2 * PAGE + Signals.room(len([*asked.model.parameters(), *asked.model.buffers()]), workers)
    signals += Arena.room(2 * lanes, torch.float64)
    assert (arena_bytes(asked, workers, here) - signals) % copies == 0, "as many copies as partials, and the weights"
