"""What a strategy says of itself; and the strategies there are."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.errors import BadInput
from lockstep.registry.base import Description, Registry

BASELINE = "single"
"""What speed-ups are measured against, and what is used for one worker where nothing is asked for."""
DEFAULT = "ddp"
"""What is used for several workers where nothing is asked for, and what reports advise."""


@dataclass(frozen=True, kw_only=True)
class TrainerDescription(Description):
    """What `--strategy` can name: a strategy, or a peer."""

    exact: bool = False
    """Whether it gives one digest on any number of workers up to the number of lanes."""
    one_process: bool = False
    """Whether its workers are threads of one process; else each worker is a process."""
    shares_memory: bool = False
    """Whether the workers of one host exchange through shared memory (the shm backend)."""
    staged: bool = False
    """Whether the model is cut into stages, one per worker of a replica."""
    equal_lanes: bool = False
    """Whether workers meet inside forward, so that each must run as many lanes as the others."""
    least_workers: int = 1
    """The fewest workers that it can have."""
    most_workers: int | None = None
    """The most workers that it can have; None: any number."""

    def workers(self, asked: int) -> int:
        """Return how many workers it has in a comparison that asks for so many."""
        return asked if self.most_workers is None else min(asked, self.most_workers)

    def processes(self, workers: int) -> int:
        """Return how many processes it needs for so many workers."""
        return 1 if self.one_process else workers

    def check_workers(self, workers: int, processes: int | None = None) -> None:
        """Refuse a number of workers, and of processes that there are for them, that it cannot have."""
        if workers < self.least_workers > 1:
            raise BadInput(
                f"strategy {self.name} needs at least {self.least_workers} workers: use --workers "
                f"{self.least_workers}, or strategy {BASELINE}"
            )
        if self.most_workers is not None and workers > self.most_workers:
            one = "one worker" if self.most_workers == 1 else f"at most {self.most_workers} workers"
            raise BadInput(
                f"strategy {self.name} trains on {one}, and there are {workers}: use --workers {self.most_workers}"
            )
        if processes is not None and processes != self.processes(workers):
            needs = "one process with a thread per worker" if self.one_process else "a process per worker"
            raise BadInput(
                f"strategy {self.name} needs {needs}, and there are {processes} processes for {workers} workers: "
                f"start {self.processes(workers)}, or use strategy {DEFAULT}"
            )


@dataclass(frozen=True, kw_only=True)
class StrategyDescription(TrainerDescription):
    """A strategy: who computes which lane, where and when."""

    implementation: str
    """`module:Class`, a subclass of `lockstep.strategies.base.Strategy`; imported in the workers only."""
    limits: str = ""
    """`module:function` that refuses what it cannot train, before any worker starts; see `lockstep.strategies.limits`.
    Empty: there is nothing to refuse but what all strategies refuse."""


STRATEGIES = Registry(
    "strategy",
    StrategyDescription,
    value="STRATEGY",
    modules=(
        "lockstep.strategies.single",
        "lockstep.strategies.dp",
        "lockstep.strategies.ddp",
        "lockstep.strategies.layers",
        "lockstep.strategies.pipeline",
        "lockstep.strategies.sharded",
        "lockstep.strategies.torch_dp",
        "lockstep.strategies.torch_ddp",
        "lockstep.strategies.torch_fsdp",
        "lockstep.strategies.torch_pipeline",
    ),
    group="lockstep.strategies",
)
"""In the order of a comparison's rows."""
