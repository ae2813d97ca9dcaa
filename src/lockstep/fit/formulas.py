"""How much memory the largest worker needs, by strategy (pure).

M  the trained weights        S  the optimizer's state        A  one lane, forward and backward
W  workers                    p, s, w  partial sums, scratch and waiting gradients of a worker, see lanes/fold_memory.py

    single      M + (p + s + w) M + S + A
    ddp         M + (p + s + w) M + S / W + A + (the others' p) M / W       weights and p are shared by a host's workers
    dp          M + the sum over workers of (p + s + w) M + S + W A         one process
    sharded     M / W + the sums over lanes / W + S / W + A + two blocks of weights and two of gradients
    torch-ddp   M + M (buckets) + M (if a worker has several lanes) + S + A
    torch-fsdp  M / W + M / W (M if a worker has several lanes) + S / W + A + two blocks of each
    layers, pipeline    see stage_formulas.py

and the interpreter, the data, the batches that are read ahead. See [Note: freed memory].

[Note: freed memory]
On the CPU a process keeps what it frees (train/malloc.py). So what making the data and the plain model took and freed
stays, as room for what a step allocates: it counts only as far as it is more than that. A tensor needs one gap that is
large enough, and the first step's optimizer state lies between such gaps: the heap grows by about one of the largest
tensors for each set of tensors that come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockstep.errors import BadInput
from lockstep.fit.lane_facts import LaneFacts
from lockstep.fit.need import Need
from lockstep.lanes.fold_memory import FoldMemory, fold_memory

LOOP = 8 << 20
"""What the loop around the steps takes: records, digests, evaluations, files."""
GROUP = 4 << 20
"""What a process group takes: threads, connections, and messages on their way."""
BUCKET = 25 << 20
"""Of torch's DDP: gradients wait until a bucket is complete."""
AT_START = 250 << 20
"""Weights that torch's DDP sends at once when it is made."""
READ_AHEAD = 4
"""Batches at once: one in use, two ready, one being read."""
BUFFERS = 5
"""Float buffers: in use, the step's first values, a partial, its scratch, the mean."""
UPDATE = 2
"""Temporary tensors of an optimizer that updates whole tensors, each as large as the largest."""


@dataclass(frozen=True, kw_only=True)
class FitWay:
    """A way to train, as far as memory depends on it."""

    strategy: str
    workers: int
    lanes: int
    """Of the global batch."""
    stages: int = 1
    """Parts of a model that is cut."""
    order: str = ""
    """Of lanes, where the model is cut."""
    cut: tuple[int, ...] | None = None
    """The first layer of every stage but the first; None: the best cut."""
    limit: int | None = None
    """The most memory of a stage."""
    exact: bool = True
    """Whether sums follow the tree over lanes."""
    arena: bool = True
    """Whether the workers of a host share weights and partial sums."""

    @property
    def replicas(self) -> int:
        """Whole models that share out the lanes."""
        return self.workers // self.stages

    @property
    def own_lanes(self) -> int:
        """Lanes of the worker that has the most."""
        return -(-self.lanes // self.replicas)

    def folds(self, *, lazy: bool) -> list[FoldMemory]:
        """Return what each replica holds of gradients."""
        every = range(self.replicas)
        return [fold_memory(self.lanes, self.replicas, rank, exact=self.exact, lazy=lazy) for rank in every]


def worker_data(facts: LaneFacts, lanes: int) -> int:
    """Return the data of a worker with so many lanes: data sets, and batches that are read ahead."""
    return facts.data + READ_AHEAD * lanes * facts.batch


def worker_base(facts: LaneFacts) -> int:
    """Return what any worker has before it has a model."""
    return facts.base + LOOP if facts.keeps_freed else facts.base


def stock_base(facts: LaneFacts) -> int:
    """Return what a worker of a strategy of torch's own has before it has a model."""
    return worker_base(facts) + facts.compiler


def left_over(facts: LaneFacts, freed: int, allocated: int, *, elsewhere: int = 0, sets: int = 1) -> int:
    """Return the memory that is free and kept, see [Note: freed memory]: what the start freed and no step needs, gaps.

    `elsewhere` is what is needed at another time, on any device, in place of what a step allocates; `sets` are those of
    tensors that come and go.
    """
    at_start = max(freed, facts.data_peak - facts.data) if facts.keeps_freed else 0
    gaps = sets * facts.largest if facts.keeps_freed else 0
    return max(0, max(at_start, elsewhere) - allocated) + gaps


def largest_of(needs: list[Need], host: int) -> Need:
    """Return the need of the largest worker, with what all workers of a host need."""
    largest = max(needs, key=lambda need: need.total)
    return Need(**largest.parts(), host=host)


def exact_need(facts: LaneFacts, way: FitWay) -> Need:
    """`single` and `ddp`: the exact step, over an arena or with own weights."""
    folds, weights, workers = way.folds(lazy=facts.keeps_freed), facts.weights, way.workers
    partials = sum(fold.partials for fold in folds)
    needs = []
    for rank, fold in enumerate(folds):
        others = (partials - fold.partials) * weights // workers
        updates = facts.sliced or rank == 0 or not way.arena
        state = facts.state // workers if facts.sliced else facts.state if updates else 0
        in_lane = fold.waiting * weights + facts.lane
        # Over collectives the others' sums come when the lanes are done, and so in their place.
        gathered = max(one.partials for one in folds) * weights + weights + weights // workers
        received = 0 if workers == 1 or way.arena else max(0, gathered - in_lane)
        shared = others if way.arena else 0
        needs.append(
            Need(
                base=worker_base(facts),
                data=worker_data(facts, way.own_lanes),
                weights=weights + facts.frozen + BUFFERS * facts.buffers,
                gradients=fold.total * weights,
                optimizer=state,
                activations=facts.lane,
                exchange=received + shared + (GROUP if workers > 1 else 0),
                freed=left_over(facts, weights, in_lane + received + state),
            )
        )
    arena = (1 + partials) * weights if way.arena and workers > 1 else 0
    own = [need.total - _touched(need, fold, facts) for need, fold in zip(needs, folds, strict=True)]
    host = sum(own) + arena if arena else sum(need.total for need in needs)
    return largest_of(needs, host)


def _touched(need: Need, fold: FoldMemory, facts: LaneFacts) -> int:
    """Return how much of the arena a worker touches: the weights, its own partial sums, its slice of the others'."""
    return (1 + fold.partials) * facts.weights + need.exchange - GROUP


def threads_need(facts: LaneFacts, way: FitWay) -> Need:
    """`dp`: one process. Each thread has memory of its own, so the copies that the start freed are nobody's room."""
    folds = way.folds(lazy=facts.keeps_freed)
    need = Need(
        base=worker_base(facts),
        data=worker_data(facts, way.lanes),
        weights=facts.weights + way.workers * (facts.frozen + BUFFERS * facts.buffers),
        gradients=sum(fold.total for fold in folds) * facts.weights,
        optimizer=facts.state,
        activations=way.workers * facts.lane,
        freed=way.workers * facts.weights,
    )
    return largest_of([need], need.total)


def torch_ddp_need(facts: LaneFacts, way: FitWay) -> Need:
    """`torch-ddp`: own weights, buckets and optimizer state on every worker."""
    update = max(0, UPDATE * facts.largest - facts.lane)
    gradients = facts.weights * (2 if way.own_lanes > 1 else 1) + min(BUCKET, facts.weights)
    need = Need(
        base=stock_base(facts),
        data=worker_data(facts, way.own_lanes),
        weights=facts.weights + facts.frozen,
        gradients=gradients,
        optimizer=facts.state + update,
        activations=facts.lane,
        exchange=GROUP,
        freed=left_over(facts, min(AT_START, facts.weights), gradients + facts.state + facts.lane),
    )
    return largest_of([need], way.workers * need.total)


def sharded_need(facts: LaneFacts, way: FitWay) -> Need:
    """`sharded`: weights, sums and optimizer state divided over workers; two blocks here at a time.

    On one host the arena holds one copy of everything, so it is `ddp`. An evaluation has the whole weights.
    """
    if way.arena or way.workers == 1:
        return exact_need(facts, way)
    workers = way.workers
    sums = 1 + (way.own_lanes - 1).bit_length()
    weights = facts.small + (facts.weights - facts.small) // workers
    gradients = sums * facts.weights // workers + 2 * facts.block
    state, blocks = facts.state // workers, 2 * facts.block
    allocated = weights + gradients + state + blocks + facts.lane
    whole = facts.weights + state + weights if facts.evaluates else 0
    need = Need(
        base=worker_base(facts),
        data=worker_data(facts, way.own_lanes),
        weights=weights + facts.frozen + BUFFERS * facts.buffers,
        gradients=gradients,
        optimizer=state,
        activations=facts.lane,
        exchange=GROUP + blocks,
        freed=left_over(facts, facts.weights + facts.lane, allocated, elsewhere=whole),
    )
    return largest_of([need], workers * need.total)


def fsdp_need(facts: LaneFacts, way: FitWay) -> Need:
    """`torch-fsdp`: weights and optimizer state divided, two blocks gathered; several lanes add up whole gradients.

    An evaluation has the whole weights. On the CPU its memory grows from step to step, by gaps between the blocks that
    it gathers, so nothing can be told of it.
    """
    if facts.keeps_freed:
        raise BadInput("on the CPU, torch-fsdp takes more memory from step to step: run it, and read its peak memory")
    workers = way.workers
    weights, state = facts.weights // workers, facts.state // workers
    gradients = (facts.weights if way.own_lanes > 1 else weights) + 2 * facts.block
    blocks = 2 * facts.block
    allocated = weights + gradients + state + blocks + facts.lane
    whole = facts.weights + state + weights if facts.evaluates else 0
    need = Need(
        base=stock_base(facts),
        data=worker_data(facts, way.own_lanes),
        weights=weights + facts.frozen,
        gradients=gradients,
        optimizer=state,
        activations=facts.lane,
        exchange=GROUP + blocks,
        freed=left_over(facts, facts.weights, allocated, elsewhere=whole),
    )
    return largest_of([need], workers * need.total)


Formula = Callable[[LaneFacts, FitWay], Need]
WHOLE_MODEL: dict[str, Formula] = {
    "single": exact_need,
    "dp": threads_need,
    "ddp": exact_need,
    "sharded": sharded_need,
    "torch-ddp": torch_ddp_need,
    "torch-fsdp": fsdp_need,
}
"""Of the strategies that do not cut the model."""
