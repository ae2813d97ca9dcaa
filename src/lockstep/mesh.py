"""Mesh: who computes what. Replicas x stages over the world, with the group of each direction.

    world of 6 ranks, 3 replicas x 2 stages        a replica is one whole model, cut into stages
                stage 0    stage 1
    replica 0   rank 0 --- rank 1                  along a row: activations and their gradients   (`across_stages`)
    replica 1   rank 2 --- rank 3                  down a column: sums over lanes, weights        (`across_replicas`)
    replica 2   rank 4 --- rank 5

[Note: a group for each direction]
On an accelerator the messages of two ranks in one group leave in the order in which they were begun, whichever way
they go. A stage that has begun to send lane 1 forward then receives no gradient of lane 0 before the next stage
receives lane 1, and that stage sends the gradient first: both wait for ever. So messages to earlier stages have a group
of their own there. Between two ranks the messages of one direction are received in the order in which they are sent:
there are no tags either.

The lanes of a global batch are dealt out to replicas; every stage of a replica works on the same lanes. The stages of a
replica are neighbours in rank, so on several hosts a row stays within a host as far as it fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from lockstep.comm.group import Group
from lockstep.lanes.schedule import check_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.world.place import World


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """This process's place in replicas x stages, and whom it talks to in each direction."""

    world: World
    """The processes that it lies over."""
    stages: int
    """Into how many parts a replica's model is cut; 1: each rank has all of it."""
    everyone: Group
    """All ranks."""
    across_replicas: Group
    """The ranks that hold the same stage, one of each replica."""
    across_stages: Group
    """The ranks of this replica, in the order of its stages."""
    toward_first: Group
    """The same ranks, for messages from a stage to one before it: see [Note: a group for each direction]."""

    @property
    def replicas(self) -> int:
        """How many whole models there are: those that share out the lanes."""
        return self.across_replicas.size

    @property
    def replica(self) -> int:
        """Which of them this rank is part of."""
        return self.across_replicas.rank

    @property
    def stage(self) -> int:
        """Which part of the model this rank computes."""
        return self.across_stages.rank

    @property
    def last_stage(self) -> bool:
        """Whether the loss is computed here."""
        return self.stage == self.stages - 1

    @classmethod
    def over(cls, world: World, *, stages: int = 1) -> Mesh:
        """Lay a mesh over a world that was joined; all its ranks call this together.

        With one stage, the replicas are the world itself, and no process group is made.
        """
        check_stages(world.size, stages)
        everyone = Group.everyone(world.device) if world.size > 1 else Group.alone(device=world.device)
        alone = Group.alone(world.rank, world.device)
        replicas = world.size // stages
        columns = [column(stage, replicas, stages) for stage in range(stages)]
        rows = [row(replica, stages) for replica in range(replicas)]
        across_replicas = everyone if stages == 1 else _group(columns, world, alone)
        across_stages = everyone if replicas == 1 else _group(rows, world, alone)
        in_order = stages > 1 and world.device != "cpu"
        return cls(
            world=world,
            stages=stages,
            everyone=everyone,
            across_replicas=across_replicas,
            across_stages=across_stages,
            toward_first=_group(rows, world, alone) if in_order else across_stages,
        )


def column(stage: int, replicas: int, stages: int) -> tuple[int, ...]:
    """Return the ranks that hold one stage, by replica."""
    return tuple(replica * stages + stage for replica in range(replicas))


def row(replica: int, stages: int) -> tuple[int, ...]:
    """Return the ranks of one replica, by stage."""
    return tuple(replica * stages + stage for stage in range(stages))


def _group(lines: Sequence[tuple[int, ...]], world: World, alone: Group) -> Group:
    """Make a process group for each line of ranks; return the one that this rank is in."""
    mine = alone
    limit = Group.everyone(world.device).time_limit
    for ranks in lines:
        if len(ranks) > 1:
            # Every rank calls it for every group, also for those it is not in. Torch would take its own time limit.
            made = dist.new_group(list(ranks), timeout=limit)
            if world.rank in ranks:
                mine = Group(ranks=ranks, rank=ranks.index(world.rank), process_group=made, device=world.device)
    return mine
