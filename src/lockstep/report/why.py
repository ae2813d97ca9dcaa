"""Why: one sentence for each row, with the main reason for its speed and what to try, from measured numbers only.

The rules run in this order, and the first that holds speaks. Each is a function of the row, its neighbours and the
machine; `None` means that it does not hold.

    oversubscribed   more threads than cores: every part is slow, so no part explains it
    data             the model waits for its batches
    stages           a model that is cut: one stage computes longer, lanes are few, or passing on takes long
    small            a step so short that meeting costs more than computing
    straggler        the ranks wait for one that computes longer
    interpreter      threads of one process take turns
    exchange         bytes on their way while nobody computes
    optimizer        the update takes as long as the model
    compute          what is left: the model's own arithmetic, which scales, or not
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.registry import BASELINE, DEFAULT, STRATEGIES, described
from lockstep.report.rows import OWN_PARTS, RankRow, Row
from lockstep.report.stage_reasons import stage_reason
from lockstep.report.units import duration, plural
from lockstep.train.schema.scalars import PARTS, Part

DATA, EXCHANGE, OPTIMIZER, WAIT = 0.20, 0.15, 0.30, 0.10
"""Shares of a step from which a part is worth a sentence."""
DATA_SECONDS = 0.001
"""Data that takes less in a step is the fixed cost of any batch: reading ahead would not pay."""
SLOWER = 1.10
"""A rank that computes so many times as long as the others is what they wait for."""
SMALL_SECONDS, SMALL_SHARE = 0.005, 0.30
"""A step below this, of which so much goes into meeting, is too small."""
LONGER = 1.25
"""Threads that compute so many times their share take turns."""
SCALES = 0.75
"""Efficiency from which a row scales as it should."""


@dataclass(frozen=True)
class Scene:
    """What a rule looks at."""

    row: Row
    """The row to explain."""
    rows: Sequence[Row]
    """All rows of the comparison."""
    cpus: int | None = None
    """Cores of each host, if known."""

    def share(self, *parts: Part) -> float:
        """Return the share of the step that parts take."""
        whole = math.fsum(self.row.parts.values())
        return math.fsum(self.row.parts[part] for part in parts) / whole if whole else 0.0

    def measured(self, *strategies: str) -> str:
        """Return `: measured X of the time`, if this comparison measured that a strategy is clearly faster.

        What more workers did is not to be credited to the strategy; against one worker any number counts.
        """
        others = [row for row in self.rows if row.strategy in strategies]
        if self.row.workers > 1:
            others = [row for row in others if row.workers in (1, self.row.workers)]
        faster = [row for row in others if clearly_faster(row, self.row)]
        if not faster:
            return ""
        best = min(faster, key=lambda row: row.step_seconds or math.inf)
        return f": measured {_ratio(best, self.row):.2f} of the time"


def why(row: Row, rows: Sequence[Row], cpus: int | None = None) -> str:
    """Return the sentence for one row; empty if nothing was measured."""
    if not row.step_seconds or not row.parts or math.fsum(row.parts.values()) <= 0.0:
        return ""
    scene = Scene(row, rows, cpus)
    for rule in (_oversubscribed, _data, _stages, _small, _straggler, _interpreter, _exchange, _optimizer):
        if sentence := rule(scene):
            return sentence
    return _compute(scene)


def clearly_faster(one: Row, other: Row) -> bool:
    """Say whether a row is faster and the spreads do not touch; without a spread nobody can tell."""
    return bool(one.step_spread and other.step_spread and one.step_spread[1] < other.step_spread[0])


def slowest_rank(ranks: Sequence[RankRow]) -> int | None:
    """Return the rank that the others wait for: it works clearly longer than they do; None if there is none."""
    busy = {rank.rank: rank.own_seconds for rank in ranks if rank.parts}
    if len(busy) < 2:
        return None
    slowest = max(busy, key=lambda rank: busy[rank])
    others = statistics.median(seconds for rank, seconds in busy.items() if rank != slowest)
    return slowest if busy[slowest] > SLOWER * others else None


def overlap(ranks: Sequence[RankRow]) -> float | None:
    """Return the share of the exchange that was hidden behind backward; None if nothing was exchanged."""
    hidden = math.fsum(rank.hidden for rank in ranks)
    whole = hidden + math.fsum(rank.parts.get("exchange", 0.0) for rank in ranks)
    return hidden / whole if whole > 0.0 and any(rank.sent for rank in ranks) else None


def _stages(scene: Scene) -> str | None:
    """Where a model is cut, waiting is part of the plan: its stages and lanes explain it, see stage_reasons.py."""
    description = described(scene.row.strategy)
    if description is None or not description.staged:
        return None
    return stage_reason(scene.row, pipeline=scene.measured("pipeline"), exchange=scene.share("exchange"))


def _oversubscribed(scene: Scene) -> str | None:
    row = scene.row
    hosts = len({rank.host for rank in row.ranks}) or 1
    if scene.cpus is None or row.workers * row.threads <= scene.cpus * hosts:
        return None
    most = max(1, scene.cpus * hosts // row.threads)
    return (
        f"{row.workers} workers of {plural(row.threads, 'thread')} share "
        f"{plural(scene.cpus * hosts, 'core')} and take turns; use at most {plural(most, 'worker')} here"
    )


def _straggler(scene: Scene) -> str | None:
    row, slow = scene.row, slowest_rank(scene.row.ranks)
    description = described(row.strategy)
    if slow is None or scene.share("wait") < WAIT or (description is not None and description.staged):
        return None  # stages compute different layers: that one takes longer is no sign of a slower core
    late = next(rank for rank in row.ranks if rank.rank == slow)
    others = [rank for rank in row.ranks if rank.rank != slow]
    means = {
        part: statistics.median(rank.parts.get(part, 0.0) for rank in others) for part in PARTS if part in OWN_PARTS
    }
    part = max(means, key=lambda name: late.parts.get(name, 0.0) - means[name])
    times = f"{late.parts[part] / means[part]:.1f} times the others'" if means[part] > 0.0 else "nothing on the others"
    spends = f"whose {part} takes {late.parts[part] * 1000:.1f} ms, {times}"
    advice = "look at how its data is read" if part == "data" else "look for other load or a slower core there"
    where = f"rank {slow} on {late.host}" if late.host else f"rank {slow}"
    return f"the ranks wait {scene.share('wait'):.0%} of the step for {where}, {spends}; {advice}"


def _data(scene: Scene) -> str | None:
    """Blame data if hiding it would pay, or if nothing else takes as long; never if meeting takes longer."""
    share, seconds, meeting = scene.share("data"), scene.row.parts["data"], scene.share("exchange", "wait")
    if share < DATA or share < meeting:
        return None
    if seconds < DATA_SECONDS:
        if share < max(scene.share("forward", "backward"), scene.share("optimizer")):
            return None
        return (
            f"fetching a batch takes {duration(seconds)}, {share:.0%} of a step that is very short; "
            "use a larger --global-batch"
        )
    return (
        f"waits {share:.0%} of the step for data; read ahead (prefetch), make items cheaper, or hold them in memory "
        "(lockstep.data.Ragged)"
    )


def _small(scene: Scene) -> str | None:
    row, share = scene.row, scene.share("exchange", "wait")
    if row.step_seconds is None or row.step_seconds >= SMALL_SECONDS or share < SMALL_SHARE:
        return None
    return (
        f"a step of {row.step_seconds * 1000:.1f} ms is too small to share: {share:.0%} of it goes into meeting the "
        f"other workers; use a larger --global-batch{_or_fewer(scene)}"
    )


def _or_fewer(scene: Scene) -> str:
    """Return the advice to use fewer workers, unless this comparison measured that fewer are slower."""
    fewer = [one for one in scene.rows if one.workers < scene.row.workers and one.step_seconds]
    if fewer and all(clearly_faster(scene.row, one) for one in fewer):
        return ""
    return f", or fewer workers{_single_measured(scene)}"


def _interpreter(scene: Scene) -> str | None:
    row, description = scene.row, described(scene.row.strategy)
    if description is None or not description.one_process or row.workers < 2:
        return None
    if row.efficiency is None or row.efficiency >= SCALES:
        return None
    base = next((one for one in scene.rows if one.strategy == BASELINE and one.efficiency == 1.0 and one.parts), None)
    slower = ""
    apart = [one for one in scene.rows if one.strategy == DEFAULT and one.workers == row.workers and one.parts]
    if apart and _computing(row) < LONGER * _computing(apart[0]):
        return None  # processes, which have a lock each, compute as long: it is not the lock
    if base is not None:
        longer = _computing(row) / (_computing(base) / row.workers)
        if longer < LONGER:
            return None
        slower = f": forward and backward take {longer:.1f} times a fair share of single's"
    faster = scene.measured(*(one.name for one in STRATEGIES.all() if not one.one_process))
    return (
        f"the {row.workers} threads of one process take turns at the interpreter's lock{slower}; "
        f"use processes ({DEFAULT}){faster}"
    )


def _exchange(scene: Scene) -> str | None:
    row, share = scene.row, scene.share("exchange")
    if share < EXCHANGE:
        return None
    sent = max((rank.sent for rank in row.ranks), default=0.0)
    over = f" over {row.backend}" if row.backend else ""
    hidden = f", {row.overlap:.0%} of it hidden behind backward" if row.overlap else ""
    spends = f"spends {share:.0%} of the step exchanging {_bytes(sent)}{over}{hidden}"
    if not sent:
        spends = f"spends {share:.0%} of the step exchanging{over}"
    description = described(row.strategy)
    if not (description and description.shares_memory) and len({rank.host for rank in row.ranks}) <= 1:
        return f"{spends}; on one host use {DEFAULT}, which exchanges in shared memory{scene.measured(DEFAULT)}"
    return f"{spends}; a larger --global-batch exchanges less often{_single_measured(scene)}"


def _optimizer(scene: Scene) -> str | None:
    row, share = scene.row, scene.share("optimizer")
    if share < OPTIMIZER:
        return None
    if row.strategy == DEFAULT:
        divided = "" if row.optimizer.startswith("replicated") else ", divided over the workers already"
        return f"spends {share:.0%} of the step in the optimizer{divided}; use a fused one"
    faster = scene.measured(DEFAULT)
    whose = "" if row.workers == 1 else ", on every worker the whole of it"
    return (
        f"spends {share:.0%} of the step in the optimizer{whose}; {DEFAULT} divides that work over the workers{faster}"
    )


def _compute(scene: Scene) -> str:
    row, share = scene.row, scene.share("forward", "backward")
    computes = f"computes for {share:.0%} of the step"
    if row.strategy == BASELINE:
        faster = [one for one in scene.rows if one.strategy != BASELINE and clearly_faster(one, row)]
        if not any(one.workers > row.workers and one.step_seconds for one in scene.rows):
            return f"{computes} on one worker; no way with more workers ran"
        if not faster:
            return f"{computes} on one worker, and no way with more workers is clearly faster here"
        best = min(faster, key=lambda one: one.step_seconds or math.inf)
        many = plural(best.workers, "worker")
        return f"{computes} on one worker; on {many} {best.name} took {_ratio(best, row):.2f} of the time"
    if row.efficiency is None or row.efficiency >= SCALES:
        scale = f" and scales as it should (efficiency {row.efficiency:.0%})" if row.efficiency else ""
        return f"{computes}{scale}; more workers on more cores are what is left to try"
    return (
        f"{computes}, and that takes longer than its share of single's (efficiency {row.efficiency:.0%}): the workers "
        f"slow each other down in caches and memory, or other programs run; {_fewer_workers(scene)}"
    )


def _fewer_workers(scene: Scene) -> str:
    """Advise fewer workers with more threads, unless this comparison measured that, too: then say what it measured."""
    row = scene.row
    tried = [one for one in scene.rows if one.workers < row.workers and one.threads > row.threads and one.step_seconds]
    if not tried:
        return "try fewer workers with more threads"
    best = min(tried, key=lambda one: one.step_seconds or math.inf)
    if row.step_spread is None or best.step_spread is None:
        return "more --repeats or --steps would tell whether fewer workers with more threads are faster"
    took = f"measured {_ratio(best, row):.2f} of the time"
    if clearly_faster(best, row):
        return f"fewer workers with more threads are faster ({best.name}: {took})"
    if _ratio(best, row) < 1.0:
        return f"fewer workers with more threads may be faster ({best.name}: {took}, but the spreads overlap)"
    return f"fewer workers with more threads are no way out here ({best.name}: {took})"


def _single_measured(scene: Scene) -> str:
    measured = scene.measured(BASELINE)
    return f" ({BASELINE}{measured})" if measured else ""


def _computing(row: Row) -> float:
    return row.parts["forward"] + row.parts["backward"]


def _ratio(one: Row, other: Row) -> float:
    return (one.step_seconds or math.nan) / (other.step_seconds or math.nan)


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
