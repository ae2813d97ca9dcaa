"""What the largest worker needs: formulas on made-up facts, by hand and by what must hold for any numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.fit.formulas import GROUP, FitWay, exact_need, fsdp_need, sharded_need, threads_need, torch_ddp_need
from lockstep.fit.lane_facts import LaneFacts
from lockstep.fit.need import Need
from lockstep.fit.stage_formulas import staged_need
from lockstep.stages.actions import FILL_DRAIN, ONE_FORWARD_ONE_BACKWARD, ONE_LANE
from tests.unit.fit.values import FACTS, LAYERS, MIB, facts


def in_mib(need: Need) -> dict[str, int]:
    return {name: count // MIB for name, count in need.parts().items() if count}


def test_single() -> None:
    """Three sums of large gradients at once: of lanes 0 to 3, of 4 and 5, and lane 6."""
    need = exact_need(FACTS, FitWay(strategy="single", workers=1, lanes=8))
    parts = {"base": 208, "weights": 100, "gradients": 300, "optimizer": 200, "activations": 30, "freed": 25}
    assert in_mib(need) == parts
    assert need.total == need.host == 863 * MIB


def test_one_lane_holds_one_gradient() -> None:
    need = exact_need(FACTS, FitWay(strategy="single", workers=1, lanes=1))
    assert in_mib(need)["gradients"] == 100


def test_what_the_start_freed_is_room_for_the_step() -> None:
    """The plain model is copied and freed: it counts only as far as a step allocates less; and there are gaps."""
    way = FitWay(strategy="single", workers=1, lanes=1)
    assert in_mib(exact_need(facts(state=0), way))["freed"] == 25
    assert in_mib(exact_need(facts(state=0, data_peak=180 * MIB), way))["freed"] == 50 + 25
    assert in_mib(exact_need(facts(state=0, data_peak=180 * MIB, lane=120 * MIB), way))["freed"] == 25
    assert "freed" not in in_mib(exact_need(facts(state=0, device="cuda"), way))


def test_ddp_shares_an_arena() -> None:
    """Two workers: own sums and half of the other's; the arena of three models counts once on the host."""
    need = exact_need(FACTS, FitWay(strategy="ddp", workers=2, lanes=8))
    assert in_mib(need) == {
        "base": 208,
        "weights": 100,
        "gradients": 200,
        "optimizer": 100,
        "activations": 30,
        "exchange": 50 + GROUP // MIB,
        "freed": 25,
    }
    own = need.total - (100 + 100 + 50) * MIB
    assert need.host == 2 * own + 300 * MIB


def test_ddp_without_an_arena_has_weights_of_its_own_and_receives_the_others_sums() -> None:
    need = exact_need(FACTS, FitWay(strategy="ddp", workers=2, lanes=8, arena=False))
    assert in_mib(need)["exchange"] == (100 + 100 + 50) - (100 + 30) + GROUP // MIB
    assert need.host == 2 * need.total


def test_an_optimizer_of_whole_tensors_is_one_workers_where_weights_are_shared() -> None:
    whole = facts(sliced=False)
    assert in_mib(exact_need(whole, FitWay(strategy="ddp", workers=2, lanes=8)))["optimizer"] == 200
    assert exact_need(whole, FitWay(strategy="ddp", workers=2, lanes=8)).host < 2 * 700 * MIB


def test_dp_is_one_process() -> None:
    need = threads_need(FACTS, FitWay(strategy="dp", workers=2, lanes=8))
    assert in_mib(need) == {
        "base": 208,
        "weights": 100,
        "gradients": 400,
        "optimizer": 200,
        "activations": 60,
        "freed": 200,
    }
    assert need.host == need.total


def test_torch_ddp_has_everything_on_every_worker() -> None:
    several = torch_ddp_need(FACTS, FitWay(strategy="torch-ddp", workers=2, lanes=8))
    one = torch_ddp_need(FACTS, FitWay(strategy="torch-ddp", workers=8, lanes=8))
    assert (in_mib(several)["gradients"], in_mib(one)["gradients"]) == (225, 125)
    assert several.host == 2 * several.total


def test_sharded() -> None:
    way = FitWay(strategy="sharded", workers=4, lanes=8)
    assert sharded_need(FACTS, way) == exact_need(FACTS, way)
    apart = sharded_need(FACTS, FitWay(strategy="sharded", workers=4, lanes=8, arena=False))
    assert (in_mib(apart)["weights"], in_mib(apart)["gradients"], in_mib(apart)["optimizer"]) == (25, 2 * 25 + 50, 50)
    assert in_mib(apart)["freed"] == 25
    without = sharded_need(facts(evaluates=False), FitWay(strategy="sharded", workers=8, lanes=8, arena=False))
    evaluated = sharded_need(
        facts(lane=0, kept=0, block=0), FitWay(strategy="sharded", workers=8, lanes=8, arena=False)
    )
    assert in_mib(without).get("freed", 0) < in_mib(evaluated)["freed"]


def test_torch_fsdp_adds_up_whole_gradients_over_lanes() -> None:
    on_device = facts(device="cuda")
    one = fsdp_need(on_device, FitWay(strategy="torch-fsdp", workers=8, lanes=8))
    several = fsdp_need(on_device, FitWay(strategy="torch-fsdp", workers=2, lanes=8))
    with pytest.raises(BadInput, match="takes more memory from step to step"):
        fsdp_need(FACTS, FitWay(strategy="torch-fsdp", workers=8, lanes=8))
    assert in_mib(one)["gradients"] == 100 // 8 + 50
    assert in_mib(several)["gradients"] == 100 + 50


def pipeline(order: str, lanes: int = 8, workers: int = 2, known: LaneFacts = FACTS) -> Need:
    return staged_need(known, FitWay(strategy="pipeline", workers=workers, lanes=lanes, stages=2, order=order))


def test_a_stage() -> None:
    """Half of everything, the lanes in flight, and what one lane takes on the way."""
    needs = {order: in_mib(pipeline(order)) for order in (ONE_LANE, ONE_FORWARD_ONE_BACKWARD, FILL_DRAIN)}
    assert [needs[order]["activations"] for order in needs] == [10 + 10, 2 * 10 + 10, 8 * 10 + 10]
    assert {(need["weights"], need["gradients"], need["optimizer"]) for need in needs.values()} == {(50, 150, 100)}


def test_replicas_of_a_stage_share_the_lanes_and_the_optimizer() -> None:
    need = in_mib(pipeline(ONE_LANE, workers=4))
    assert (need["gradients"], need["optimizer"]) == (100, 50)


def test_the_first_worker_measures_the_layers_on_the_whole_model() -> None:
    small = facts(state=0, lane=400 * MIB, kept=1 * MIB, layers=LAYERS)
    assert in_mib(pipeline(ONE_LANE, known=small))["freed"] == 50
    assert in_mib(pipeline(ONE_LANE, known=facts(state=0, lanes=2), lanes=1))["freed"] > 50


def test_a_model_that_cannot_be_cut() -> None:
    with pytest.raises(BadInput, match="no chain"):
        pipeline(ONE_LANE, known=facts(layers=(), uncut="it is no chain"))
    with pytest.raises(BadInput, match="5 stages need at least 5 layers"):
        staged_need(FACTS, FitWay(strategy="layers", workers=5, lanes=8, stages=5, order=ONE_LANE))


def test_the_limit_of_a_stage() -> None:
    way = FitWay(strategy="layers", workers=2, lanes=8, stages=2, order=ONE_LANE, limit=100 * MIB)
    with pytest.raises(BadInput, match=r"2 stages need --stage-memory .* or more; .*use 4 stages|more stages"):
        staged_need(FACTS, way)


SIZES = st.integers(0, 2**34)


@given(st.integers(1, 32), st.integers(1, 8), SIZES, SIZES, SIZES)
def test_more_is_never_less(lanes: int, workers: int, weights: int, state: int, lane: int) -> None:
    """A larger model, state or lane never needs less; nothing is negative; a host has no more than its workers."""
    workers = min(workers, lanes)
    known = facts(weights=weights, state=state, lane=lane, kept=lane // 2, largest=weights, layers=())
    for formula in (exact_need, threads_need, torch_ddp_need, sharded_need):
        for arena in (True, False):
            way = FitWay(strategy="any", workers=workers, lanes=lanes, arena=arena)
            need = formula(known, way)
            assert min(need.parts().values()) >= 0
            assert need.total <= need.host + GROUP * workers or workers == 1
            assert need.host <= workers * need.total
            for more in ({"weights": weights + MIB}, {"state": state + MIB}, {"lane": lane + MIB}):
                assert formula(facts(**{**vars(known), **more}), way).total >= need.total
