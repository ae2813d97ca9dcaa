"""Parity: whether two runs gave the same bits; if not, where they part and what the likely cause is.

Everything is decided from facts that two run folders hold:

    setup          versions, threads, workers, lanes, strategy, SyncBatchNorm
    fingerprints   a hash, the mean and the norm of every tensor after steps 0, 1, 2, 4, 8, ... and the last
    steps          the loss and the weight of every rank in every step

The loss of step 0 is computed before any update, so it tells whether *forward* differs: other samples, other random
numbers, BatchNorm over other batches. If only what follows differs, it is the sum of the gradients or the update.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.registry import PEERS, described
from lockstep.report.collect import FinishedRun
from lockstep.report.units import plural
from lockstep.train.same_bits import promises_bits
from lockstep.train.schema.fingerprints_jsonl import Fingerprint, FingerprintLine
from lockstep.train.weights_difference import MOST_BYTES, largest_difference, too_large

ROUNDING = 1e-5
"""Relative differences below this are what another order of summation makes in one step."""
STATISTICS = ("running_mean", "running_var")
COUNTER = "num_batches_tracked"
"""Of BatchNorm: a strategy may count lanes or steps, and nothing is computed from it by default."""
SAME = "same bits"
FIRST = "the others are compared with this"
OTHER_LANES = "other number of lanes"
"""Another sum: not to be compared."""


@dataclass(frozen=True)
class Parting:
    """Where two runs part."""

    step: int
    """The first step whose fingerprints differ; they are taken after steps 0, 1, 2, 4, 8 and so on."""
    after: int
    """The last step before it whose fingerprints are the same; -1 if there is none."""
    tensor: str
    """The first tensor that differs, in the model's order; parameters before buffers."""
    parameters: float
    """The largest relative difference of a parameter's norm at that step."""
    parameter: str
    """Whose."""
    typical: float
    """The median of these differences."""
    buffers: float
    """The same for buffers."""
    largest: float
    """The largest relative difference of a tensor's norm at the last step with fingerprints."""
    largest_tensor: str
    """Whose."""


def parity(first: FinishedRun, other: FinishedRun) -> str:
    """Say whether two runs gave the same bits; if not, by how much, where first, and the likely cause."""
    if first.result.digest == other.result.digest:
        return SAME
    parted = parting(first.fingerprints, other.fingerprints)
    cause = likely_cause(first, other, parted)
    if parted is None:
        where = " in the optimizer's state alone" if first.fingerprints and other.fingerprints else ""
        return f"differs{where}: {cause}"
    size = _size(first, other, parted)
    return f"differs first after step {parted.step} in {parted.tensor}{size}: {cause}"


def _size(first: FinishedRun, other: FinishedRun, parted: Parting) -> str:
    """Say how far the runs are apart at the end: by any value if both kept their weights, else by norms."""
    exact = largest_difference(first.folder, other.folder)
    if exact is not None and math.isnan(exact[0]):
        return f", with values at the end that are no numbers on one side only ({exact[1]})"
    if exact is not None and math.isinf(exact[0]):
        return f", with infinite values at the end ({exact[1]})"
    if exact is not None and exact[0]:
        return f", by up to {exact[0]:.1e} at the end ({exact[1]})"
    if parted.largest:
        return f", by up to {parted.largest:.0e} of the norm at the end ({parted.largest_tensor})"
    if too_large(first.folder, other.folder):
        return f" (weights of more than {MOST_BYTES >> 30} GiB are not compared value by value)"
    return ""


def parting(first: Sequence[FingerprintLine], other: Sequence[FingerprintLine]) -> Parting | None:
    """Return where two series of fingerprints part; None if they do not, or cannot be compared."""
    theirs = {line.step: line for line in other}
    pairs = [(line, theirs[line.step]) for line in first if line.step in theirs]
    after = -1
    for mine, their in pairs:
        name = _first_difference(mine, their)
        if name:
            last, other_last = pairs[-1]
            both = [_largest(last.parameters, other_last.parameters), _largest(last.buffers, other_last.buffers)]
            largest, tensor = max(both)
            differences = _differences(mine.parameters, their.parameters)
            parameters, parameter = max(differences, default=(0.0, ""))
            return Parting(
                step=mine.step,
                after=after,
                tensor=name,
                parameters=parameters,
                parameter=parameter,
                typical=statistics.median(size for size, _ in differences) if differences else 0.0,
                buffers=_largest(mine.buffers, their.buffers)[0],
                largest=largest,
                largest_tensor=tensor,
            )
        after = mine.step
    return None


def likely_cause(first: FinishedRun, other: FinishedRun, parted: Parting | None) -> str:
    """Name the likely cause of a difference; the rules run from what is certain to what is left."""
    mine, theirs = first.setup.spec, other.setup.spec
    versions = [run.setup.versions.get("torch") for run in (first, other)]
    threads = [run.result.threads for run in (first, other)]
    if versions[0] != versions[1]:
        return f"other version of torch ({versions[1]} against {versions[0]})"
    if threads[0] != threads[1]:
        return f"other thread count ({threads[1]} against {threads[0]})"
    lanes = [run.setup.plan.lanes for run in (first, other)]
    if lanes[0] != lanes[1]:
        return f"{OTHER_LANES} ({lanes[1]} against {lanes[0]})"
    if not theirs.exact or not mine.exact:
        return "inexact sums were asked for"
    if coupled := other.result.depends_on_workers or first.result.depends_on_workers:
        return f"BatchNorm over other batches ({coupled} over {theirs.workers} against {mine.workers} workers)"
    if all(promises_bits(spec.strategy) for spec in (mine, theirs)):
        return "the recipe is not deterministic, or the file has changed between the runs"
    return _from_numbers(first, other, parted)


def first_of_its_lanes(lanes: int) -> str:
    """Return the parity of the first row with another number of lanes than the rows before."""
    return f"{OTHER_LANES}: the others with {plural(lanes, 'lane')} are compared with this"


def unsteady(runs: Sequence[FinishedRun]) -> str:
    """Say where the repeats of one way part from the first of them; empty if they do not."""
    for number, run in enumerate(runs[1:], start=2):
        if run.result.digest != runs[0].result.digest:
            parted = parting(runs[0].fingerprints, run.fingerprints)
            where = f", first after step {parted.step} in {parted.tensor}" if parted else ""
            return f"repeats 1 and {number} differ{where}: not deterministic"
    return ""


def _from_numbers(first: FinishedRun, other: FinishedRun, parted: Parting | None) -> str:
    """Decide by what differs: forward, the running statistics alone, the sum, or no more than rounding."""
    buffers = other.fingerprints[0].buffers if other.fingerprints else {}
    normed = any(name.endswith(STATISTICS) for name in buffers)
    description = described(other.setup.spec.strategy)
    staged = description is not None and description.staged
    forward = bool(first.losses and other.losses) and relative(first.losses[0], other.losses[0]) > ROUNDING
    if forward and other.setup.spec.strategy in PEERS:
        return "other samples in each step (a peer shuffles on its own), and dropout seeds"
    if forward and staged:
        return "dropout seeds (drawn by each stage, not along a lane)"
    if forward and normed and first.setup.plan.lanes != other.setup.spec.workers:
        return "BatchNorm over other batches (a worker's whole batch at once, not lane by lane)"
    if forward:
        return "dropout seeds (drawn by rank, not by lane), or other samples"
    if parted is None or max(parted.parameters, parted.buffers) <= ROUNDING:
        return "other order of summation"
    if parted.parameters <= ROUNDING:
        also = "" if parted.tensor in buffers else "other order of summation, and "
        whose = "lane after lane" if staged else "of one worker"
        return f"{also}BatchNorm over other batches (running statistics {whose}, not the mean of all)"
    if _uneven(other, parted):
        return "mean of means (the workers' batches weigh differently)"
    if parted.after > 0:
        return "other order of summation (grown over the steps since)"
    if parted.typical <= ROUNDING:
        return (
            f"other order of summation (far more in {parted.parameter}: Adam and its like make rounding large where a "
            "gradient should be 0, as that of a bias before BatchNorm), or another update of that tensor"
        )
    return "another update (scaling or optimizer)"


def _uneven(run: FinishedRun, parted: Parting) -> bool:
    """Say whether the ranks' weights differed in a step between the last equal fingerprints and the first others."""
    weights: dict[int, set[float]] = {}
    for line in (line for rank in run.steps for line in rank):
        if parted.after < line.step <= parted.step:
            weights.setdefault(line.step, set()).add(line.weight)
    return any(len(own) > 1 for own in weights.values())


def relative(a: float, b: float) -> float:
    """Return the difference of two numbers relative to the larger."""
    if a == b:
        return 0.0
    largest = max(abs(a), abs(b))
    return abs(a - b) / largest if math.isfinite(largest) else math.inf


def _first_difference(mine: FingerprintLine, their: FingerprintLine) -> str:
    for own, other in ((mine.parameters, their.parameters), (mine.buffers, their.buffers)):
        for name, fingerprint in own.items():
            if name in other and other[name].hash != fingerprint.hash:
                return name
    return ""


def _largest(mine: Mapping[str, Fingerprint], theirs: Mapping[str, Fingerprint]) -> tuple[float, str]:
    """Return the largest relative difference of a norm, and whose."""
    return max(_differences(mine, theirs), default=(0.0, ""))


def _differences(mine: Mapping[str, Fingerprint], theirs: Mapping[str, Fingerprint]) -> list[tuple[float, str]]:
    """Return the relative difference of each norm, and whose; large models have no norms."""
    norms = [
        (name, fingerprint.norm, theirs[name].norm)
        for name, fingerprint in mine.items()
        if name in theirs and not name.endswith(COUNTER)
    ]
    return [(relative(a, b), name) for name, a, b in norms if a is not None and b is not None]
