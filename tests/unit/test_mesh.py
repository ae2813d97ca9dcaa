"""Meshes: who computes what, with no process started."""

from __future__ import annotations

import pytest

from lockstep import World
from lockstep.errors import BadInput
from lockstep.lanes.schedule import check_stages
from lockstep.mesh import Mesh, column, row


def test_every_rank_is_in_one_row_and_one_column() -> None:
    replicas, stages = 3, 2
    rows = [row(replica, stages) for replica in range(replicas)]
    columns = [column(stage, replicas, stages) for stage in range(stages)]
    assert rows == [(0, 1), (2, 3), (4, 5)]
    assert columns == [(0, 2, 4), (1, 3, 5)]


def test_a_world_of_one_needs_no_group() -> None:
    mesh = Mesh.over(World.alone())
    assert (mesh.replicas, mesh.replica, mesh.stages, mesh.stage, mesh.last_stage) == (1, 0, 1, 0, True)
    assert mesh.everyone.process_group is None
    assert mesh.across_replicas.ranks == mesh.across_stages.ranks == (0,)


@pytest.mark.parametrize(
    ("workers", "stages", "words"),
    [
        (6, 4, "6 workers cannot be divided into replicas of 4 stages: use 1, 2, 3, 6 stages, or 8 workers"),
        (2, 3, "use 1, 2 stages, or 3 workers"),
        (2, 0, "at least 1 is needed"),
    ],
)
def test_stages_that_do_not_divide_the_workers(workers: int, stages: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        check_stages(workers, stages)
