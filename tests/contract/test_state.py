"""A state held in pieces by several ranks: its digest, fingerprints and stream are those of a rank that has it all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lockstep.comm.group import Group
from lockstep.digest import BLOCK
from lockstep.errors import LockstepError
from lockstep.mesh import Mesh
from lockstep.state.hashes import state_digest, summaries
from lockstep.state.holdings import Holding, whole
from lockstep.state.stream import gather, stream
from lockstep.state.table import agree
from tests.contract.lane_cases import world_of
from tests.ranks import Ranks

STATE = {
    "parameter/large": torch.arange(3 * BLOCK + 99, dtype=torch.float32).sin(),
    "parameter/half": torch.arange(2 * BLOCK, dtype=torch.float32).cos().to(torch.bfloat16).view(2, -1),
    "buffer/count": torch.tensor(7),
    "buffer/empty": torch.empty(0, 4),
    "optimizer/large/z": torch.full((3, 5), 2 - 1j),
}


def held_by(rank: int, size: int) -> list[Holding]:
    """Uneven pieces that cut blocks; the pieces of one tensor go to the ranks in another turn than the next one's."""
    holdings = []
    for number, (name, tensor) in enumerate(STATE.items()):
        flat = tensor.reshape(-1)
        pieces = 2 * size + 1 if len(flat) > 99 else 1
        for piece in range(pieces):
            low, high = piece * len(flat) // pieces, (piece + 1) * len(flat) // pieces
            if (piece + number) % size == rank:
                holdings.append(Holding(name, tensor.dtype, tuple(tensor.shape), low, (flat[low:high],)))
    return holdings


def together(rank: int, size: int, stages: int) -> tuple[str, dict[str, object], dict[str, Tensor], dict[str, Tensor]]:
    group = Mesh.over(world_of(rank, size, "", [size]), stages=stages).everyone
    held = held_by(rank, size)
    table = agree(group, held)
    parts: dict[str, list[Tensor]] = {name: [] for name in STATE}
    for entry, window in stream(group, table, held):
        parts[entry.name].append(window)
    streamed = {name: torch.cat(rows) for name, rows in parts.items() if rows}
    numbers: dict[str, object] = dict(summaries(group, table, held, numbers=True))
    return state_digest(group, held), numbers, gather(group, table, held), streamed


@pytest.fixture(scope="module", params=[("shm", 2), ("gloo", 3), ("shm", 4)], ids=str)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    backend, size = request.param
    with Ranks(size, backend) as started:
        yield started


def test_pieces_are_as_good_as_the_whole(ranks: Ranks) -> None:
    alone = [whole(name, tensor) for name, tensor in STATE.items()]
    digest = state_digest(Group.alone(), alone)
    numbers = summaries(Group.alone(), agree(Group.alone(), alone), alone, numbers=True)
    for rank, (theirs, summary, gathered, streamed) in enumerate(ranks.run(together, 2 if ranks.size == 4 else 1)):
        assert theirs == digest
        assert summary == numbers
        assert all(torch.equal(gathered[name], tensor) for name, tensor in STATE.items())
        expected = {name: tensor.reshape(-1) for name, tensor in STATE.items() if tensor.numel()} if rank == 0 else {}
        assert set(streamed) == set(expected)
        assert all(torch.equal(streamed[name], tensor) for name, tensor in expected.items())


def twice(rank: int, size: int) -> str:
    with pytest.raises(LockstepError) as refused:
        agree(Group.everyone(), [whole("parameter/a", torch.zeros(3))])
    return str(refused.value)


def test_what_two_ranks_answer_for_is_refused_on_all(ranks: Ranks) -> None:
    assert set(ranks.run(twice)) == {"the strategy holds the elements 0 to 3 of parameter/a twice"}
