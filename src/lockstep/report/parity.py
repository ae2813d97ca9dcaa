"""Parity: whether two runs gave the same bits; if not, where they part and what the likely cause is.

Everything is decided from facts that two run folders hold:

    order       versions, threads, workers, lanes, strategy, SyncBatchNorm
    prints      a hash, the mean and the norm of every tensor after steps 0, 1, 2, 4, 8, ... and the last
    steps       the loss and the weight of every rank in every step

The loss of step 0 is computed before any update, so it tells whether *forward* differs: other samples, other random
numbers, BatchNorm over other batches. If only what follows differs, it is the sum of the gradients or the update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.registry import PEERS, described
from lockstep.report.collect import Run
from lockstep.train.weights_difference import MOST_BYTES, largest_difference, too_large

ROUNDING = 1e-5
"""Relative differences below this are what another order of summation makes in one step."""
STATISTICS = ("running_mean", "running_var")
COUNTER = "num_batches_tracked"
"""Of BatchNorm: a strategy may count lanes or steps, and nothing is computed from it by default."""
SAME = "same bits"
FIRST = "the others are compared with this"


@dataclass(frozen=True)
class Parting:
    """Where two runs part."""

    step: int
    """The first printed step that differs; prints are taken after steps 0, 1, 2, 4, 8 and so on."""
    after: int
    """The last printed step that is the same; -1 if there is none."""
    tensor: str
    """The first tensor that differs, in the model's order; parameters before buffers."""
    parameters: float
    """The largest relative difference of a parameter's norm at that step."""
    buffers: float
    """The same for buffers."""
    largest: float
    """The largest relative difference of a tensor's norm at the last printed step."""
    largest_tensor: str
    """Whose."""


def parity(first: Run, other: Run) -> str:
    """Say whether two runs gave the same bits; if not, by how much, where first, and the likely cause."""
    if not first.result.get("digest") or not other.result.get("digest"):
        return f"not comparable: {other.order['spec']['strategy']} leaves no digest"
    if first.result["digest"] == other.result["digest"]:
        return SAME
    found = parting(first.prints, other.prints)
    cause = likely_cause(first, other, found)
    if found is None:
        where = " in the optimizer's state alone" if first.prints and other.prints else ""
        return f"differs{where}: {cause}"
    size = _size(first, other, found)
    return f"differs first after step {found.step} in {found.tensor}{size}: {cause}"


def _size(first: Run, other: Run, found: Parting) -> str:
    """Say how far the runs are apart at the end: by any value if both kept their weights, else by norms."""
    exact = largest_difference(first.folder, other.folder)
    if exact is not None and math.isnan(exact[0]):
        return f", with values at the end that are no numbers on one side only ({exact[1]})"
    if exact is not None and math.isinf(exact[0]):
        return f", with infinite values at the end ({exact[1]})"
    if exact is not None and exact[0]:
        return f", by up to {exact[0]:.1e} at the end ({exact[1]})"
    if found.largest:
        return f", by up to {found.largest:.0e} of the norm at the end ({found.largest_tensor})"
    if too_large(first.folder, other.folder):
        return f" (weights of more than {MOST_BYTES >> 30} GiB are not compared value by value)"
    return ""


def parting(first: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> Parting | None:
    """Return where two series of prints part; None if they do not, or cannot be compared."""
    theirs = {int(line["step"]): line for line in other}
    pairs = [(line, theirs[int(line["step"])]) for line in first if int(line["step"]) in theirs]
    after = -1
    for mine, their in pairs:
        name = _first_difference(mine, their)
        if name:
            parameters, _ = _largest(mine, their, "parameters")
            buffers, _ = _largest(mine, their, "buffers")
            largest, tensor = max(_largest(*pairs[-1], kind) for kind in ("parameters", "buffers"))
            return Parting(int(mine["step"]), after, name, parameters, buffers, largest, tensor)
        after = int(mine["step"])
    return None


def likely_cause(first: Run, other: Run, found: Parting | None) -> str:
    """Name the likely cause of a difference; the rules run from what is certain to what is left."""
    mine, theirs = first.order["spec"], other.order["spec"]
    versions = [run.order["versions"].get("torch") for run in (first, other)]
    threads = [run.result.get("threads") for run in (first, other)]
    if versions[0] != versions[1]:
        return f"other version of torch ({versions[1]} against {versions[0]})"
    if threads[0] != threads[1]:
        return f"other thread count ({threads[1]} against {threads[0]})"
    if theirs.get("exact") is False or mine.get("exact") is False:
        return "inexact sums were asked for"
    if coupled := other.result.get("depends_on_workers") or first.result.get("depends_on_workers"):
        return f"BatchNorm over other batches ({coupled} over {theirs['workers']} against {mine['workers']} workers)"
    if all(promises_bits(spec["strategy"]) for spec in (mine, theirs)):
        return "the recipe is not deterministic, or the file has changed between the runs"
    return _from_numbers(first, other, found)


def promises_bits(strategy: str) -> bool:
    """Say whether a strategy gives the same bits on any number of workers; False for one that is not known here."""
    description = described(strategy)
    return description is not None and description.exact


def unsteady(runs: Sequence[Run]) -> str:
    """Say where the repeats of one way part from the first of them; empty if they do not."""
    for number, run in enumerate(runs[1:], start=2):
        if run.result.get("digest") != runs[0].result.get("digest"):
            found = parting(runs[0].prints, run.prints)
            where = f", first after step {found.step} in {found.tensor}" if found else ""
            return f"repeats 1 and {number} differ{where}: not deterministic"
    return ""


def _from_numbers(first: Run, other: Run, found: Parting | None) -> str:
    """Decide by what differs: forward, the running statistics alone, the sum, or no more than rounding."""
    normed = any(name.endswith(STATISTICS) for line in other.prints[:1] for name in line.get("buffers", {}))
    forward = bool(first.losses and other.losses) and relative(first.losses[0], other.losses[0]) > ROUNDING
    if forward and other.order["spec"]["strategy"] in PEERS:
        return "other samples in each step (a peer shuffles on its own), and dropout seeds"
    if forward and normed and first.order["plan"]["lanes"] != other.order["spec"]["workers"]:
        return "BatchNorm over other batches (a worker's whole batch at once, not lane by lane)"
    if forward:
        return "dropout seeds (drawn by rank, not by lane), or other samples"
    if found is None or max(found.parameters, found.buffers) <= ROUNDING:
        return "other order of summation"
    if found.parameters <= ROUNDING:
        also = "" if found.tensor in other.prints[0].get("buffers", {}) else "other order of summation, and "
        return f"{also}BatchNorm over other batches (running statistics of one worker, not the mean of all)"
    if _uneven(other, found):
        return "mean of means (the workers' batches weigh differently)"
    if found.after > 0:
        return "other order of summation (grown over the steps since)"
    return "another update (scaling or optimizer)"


def _uneven(run: Run, found: Parting) -> bool:
    """Say whether the ranks' weights differed in a step between the last same print and the first other one."""
    weights: dict[int, set[float]] = {}
    for line in (line for rank in run.steps for line in rank):
        if found.after < int(line["step"]) <= found.step and line.get("weight") is not None:
            weights.setdefault(int(line["step"]), set()).add(float(line["weight"]))
    return any(len(own) > 1 for own in weights.values())


def relative(a: float, b: float) -> float:
    """Return the difference of two numbers relative to the larger."""
    if a == b:
        return 0.0
    largest = max(abs(a), abs(b))
    return abs(a - b) / largest if math.isfinite(largest) else math.inf


def _first_difference(mine: Mapping[str, Any], their: Mapping[str, Any]) -> str:
    for kind in ("parameters", "buffers"):
        for name, entry in mine.get(kind, {}).items():
            if name in their.get(kind, {}) and their[kind][name][0] != entry[0]:
                return str(name)
    return ""


def _largest(mine: Mapping[str, Any], their: Mapping[str, Any], kind: str) -> tuple[float, str]:
    """Return the largest relative difference of a norm, and whose; large models have no norms."""
    found = [
        (relative(float(entry[2]), float(their[kind][name][2])), str(name))
        for name, entry in mine.get(kind, {}).items()
        if name in their.get(kind, {})
        and entry[2] is not None
        and their[kind][name][2] is not None
        and not name.endswith(COUNTER)
    ]
    return max(found, default=(0.0, ""))
