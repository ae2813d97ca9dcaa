"""What is made of a rank's steps, with no process started."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.comm.group import Group
from lockstep.state.holdings import whole
from lockstep.strategies.clock import PARTS, Clock
from lockstep.train.fingerprints import fingerprints
from lockstep.train.schema.fingerprints_jsonl import Fingerprint, is_fingerprint_step
from lockstep.train.steps import joined, quartiles, waited, warmup


@pytest.mark.parametrize(("steps", "expected"), [(0, 0), (1, 0), (2, 1), (3, 2), (1000, 2)])
def test_at_least_one_step_is_measured(steps: int, expected: int) -> None:
    assert warmup(steps) == expected


def test_quartiles() -> None:
    assert quartiles([]) == (0.0, 0.0, 0.0)
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_laps_add_up_and_a_tail_can_be_moved() -> None:
    clock = Clock()
    clock.lap("data")
    clock.lap("backward")
    whole = sum(clock.seconds.values())
    length = clock.seconds["backward"]
    clock.move_tail("exchange", length / 4)
    assert clock.seconds["exchange"] == pytest.approx(length / 4)
    assert [name for name, *_ in clock.spans] == ["data", "backward", "exchange"]
    clock.move_tail("wait", 1000.0)
    assert clock.seconds["exchange"] == pytest.approx(0.0)
    assert sum(clock.seconds.values()) == pytest.approx(whole)
    assert set(clock.seconds) == set(PARTS)


def test_laps_of_one_part_are_joined() -> None:
    spans = [("a", 0.0, 1.0, None), ("b", 1.0, 1.0, None), ("b", 2.0, 0.5, None), ("a", 2.5, 0.5, None)]
    assert joined(spans) == [("a", 0.0, 1.0, None), ("b", 1.0, 1.5, None), ("a", 2.5, 0.5, None)]


def test_laps_of_different_lanes_stay_apart() -> None:
    spans = [("a", 0.0, 1.0, 0), ("a", 1.0, 1.0, 1), ("a", 2.0, 0.5, 1), ("a", 2.5, 0.5, None)]
    assert joined(spans) == [("a", 0.0, 1.0, 0), ("a", 1.0, 1.5, 1), ("a", 2.5, 0.5, None)]


def test_a_lap_tells_its_lane() -> None:
    clock = Clock()
    clock.lap("forward", 3)
    clock.lap("wait")
    assert [(name, lane) for name, _, _, lane in clock.spans] == [("forward", 3), ("wait", None)]


def test_waiting_is_told_from_exchanging_by_the_others_clocks() -> None:
    """Rank 0 is ready 3 s before rank 1 in the first step and 1 s after it in the second."""
    tables = [[[10.0, 5.0], [21.0, 2.0]], [[13.0, 2.0], [20.0, 0.25]]]
    assert waited(tables, 0) == pytest.approx(1.5)
    assert waited(tables, 1) == pytest.approx(0.125), "never more than the exchange took"


def test_steps_with_fingerprints() -> None:
    assert [step for step in range(21) if is_fingerprint_step(step, last=step == 20)] == [0, 1, 2, 4, 8, 16, 20]


def test_a_fingerprint_sees_every_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor([3.0, 4.0])

    def taken(**parameters: Tensor) -> dict[str, Fingerprint]:
        return fingerprints(Group.alone(), 0, [whole(f"parameter/{n}", t) for n, t in parameters.items()]).parameters

    both = taken(a=weight, n=torch.tensor(2), empty=torch.empty(0))
    assert (both["a"].mean, both["a"].norm) == (3.5, 5.0)
    assert (both["n"].mean, both["n"].norm) == (2.0, 2.0)
    assert (both["empty"].mean, both["empty"].norm) == (None, None)
    other = taken(a=torch.nextafter(weight, torch.tensor(9.0)))
    assert other["a"].hash != both["a"].hash
    lost, half = taken(a=torch.tensor([float("nan")]))["a"], taken(a=torch.ones(3, dtype=torch.bfloat16))["a"]
    assert (lost.mean, lost.norm) == (None, None)
    assert half.mean == 1.0
    assert half.norm == pytest.approx(3**0.5)
    monkeypatch.setattr("lockstep.train.fingerprints.LARGE", 7)
    assert taken(a=weight)["a"] == Fingerprint(both["a"].hash, None, None)
