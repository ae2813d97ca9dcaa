"""A model cut over workers from the command line: bad input before anything starts, records, and a worker's death."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path

import pytest

from lockstep.report.bubbles import bubble_of
from lockstep.report.collect import FinishedRun, read_finished
from lockstep.report.lane_actions import lane_actions
from lockstep.stages.actions import Action, stage_actions
from tests.commands import CommandLine
from tests.contract.lane_cases import go_on, make, world_of
from tests.ranks import Ranks

CLOCK = 1e-3
"""Between the moment that a rank notes as a step's beginning and the first lap of its stopwatch."""

NO_CHAIN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from lockstep import Recipe

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
    def forward(self, values):
        return self.second(torch.relu(self.first(values)))

def recipe():
    data = TensorDataset(torch.ones(8, 4), torch.ones(8, 2))
    return Recipe(model=Net, data=data, loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
                  optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1), global_batch=4, lanes=2)
"""

REFUSED = {
    "more stages than layers": (["mlp", "--workers", "9", "--lanes", "16"], "9 stages need at least 9 layers"),
    "no whole replicas": (["mlp", "--workers", "3", "--stages", "2"], "cannot be divided into replicas of 2 stages"),
    "one stage": (["mlp", "--workers", "2", "--stages", "1"], "cuts the model into at least 2 stages"),
    "a cut that names nothing": (["bytes", "--workers", "2", "--cut", "haed"], "did you mean 'head'?"),
    "an unknown order": (["mlp", "--workers", "2", "--pipeline-schedule", "gpipe"], "1f1b, zero-bubble or fill-drain"),
    "no chain": (["none.py", "--workers", "2"], "second does not get just what first returned"),
    "a layer that raises": (["wrong.py", "--workers", "2"], "could not be run layer by layer"),
    "a model that raises": (["no_model.py", "--workers", "2"], "Recipe(model=...) could not be called: File"),
    "an optimizer that raises": (["no_rate.py", "--workers", "2"], "Recipe(optimizer=...) could not be called: File"),
    "SyncBatchNorm": (["cifar100", "--workers", "2", "--sync-batchnorm"], "cuts the model; use ddp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_a_worker_starts(name: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "none.py").write_text(NO_CHAIN)
    listed = "Recipe(stages=lambda model: [lambda first, second: first, model.second], "
    (tmp_path / "wrong.py").write_text(NO_CHAIN.replace("Recipe(", listed))
    (tmp_path / "no_model.py").write_text(NO_CHAIN.replace("model=Net", "model=lambda: 1 / 0"))
    (tmp_path / "no_rate.py").write_text(NO_CHAIN.replace("lr=0.1", "lr=-1.0"))
    arguments, said = REFUSED[name]
    done = cli("run", *arguments, "--strategy", "pipeline", "--out", "run")
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert "Process lockstep preflight" not in done.err
    assert not (tmp_path / "run").exists()


def test_stages_of_a_strategy_that_has_none(cli: CommandLine) -> None:
    done = cli("run", "mlp", "--workers", "2", "--stages", "2")
    assert done.code == 2
    assert "strategy ddp does not cut the model; use layers or pipeline" in " ".join(done.err.split())


def test_the_schedule_is_drawn_and_nothing_is_trained(tmp_path: Path, cli: CommandLine) -> None:
    asked = ["run", "mlp", "--strategy", "pipeline", "--workers", "4", "--stages", "2", "--lanes", "4"]
    done = cli(*asked, "--show-schedule")
    assert done.code == 0
    assert "stage 0  0  1  0' .  1'" in done.out or "stage 0  0  1  .  0' .  1'" in done.out
    assert list(tmp_path.iterdir()) == []


def test_a_run_says_what_was_cut_and_has_one_digest(tmp_path: Path, cli: CommandLine) -> None:
    results = {}
    for strategy, workers in (("single", "1"), ("pipeline", "2")):
        asked = ["run", "bytes", "--strategy", strategy, "--workers", workers, "--lanes", "4", "--threads", "1"]
        done = cli(*asked, "--steps", "5", "--json", "--out", strategy)
        assert done.code == 0, done.err
        results[strategy] = json.loads(done.out)["result"]
    assert results["pipeline"]["digest"] == results["single"]["digest"]
    assert results["pipeline"]["metrics"] == results["single"]["metrics"]
    assert "stage 0: embed" in results["pipeline"]["cut"]
    assert results["single"]["cut"] == ""
    final = [(tmp_path / strategy / "final.safetensors").stat().st_size for strategy in results]
    assert final[0] == pytest.approx(final[1], abs=200), "the plain model comes back whole"
    check_recorded_lanes(read_finished(tmp_path / "pipeline"))


def check_recorded_lanes(run: FinishedRun) -> None:
    """Steps 3 and 4 have every lane's forward and backward on both stages, in time; the bubble is made of them."""
    actions = lane_actions(run)
    for step, stage in itertools.product((3, 4), (0, 1)):
        own = [one for one in actions if (one.step, one.stage) == (step, stage)]
        assert [Action(one.lane, one.forward) for one in own] == stage_actions("1f1b", 2, stage, 4)
        assert all(before.end <= after.start + CLOCK for before, after in itertools.pairwise(own))
    for one in (one for one in actions if one.stage == 0 and one.forward):
        last = next(other for other in actions if (other.step, other.lane) == (one.step, one.lane) and other.stage == 1)
        assert last.start >= one.end - one.passing - CLOCK, "a lane is not on the second stage before it left the first"
    bubble = bubble_of(run)
    assert bubble is not None
    assert 0.0 <= bubble.measured < 1.0
    assert bubble.theory == pytest.approx(0.2)
    assert bubble.expected is not None, "the layers were timed"


def train_on(rank: int, size: int) -> None:
    trainer = make("woven", world=world_of(rank, size, "shm", [size]), workers=size, strategy="pipeline")
    for _ in range(1000):
        go_on(trainer, name="woven")


def test_a_stage_that_dies_is_named_by_the_others() -> None:
    with Ranks(3, "shm") as ranks:
        ranks.start(train_on)
        time.sleep(3)
        os.kill(ranks.pid(1), signal.SIGKILL)
        outcomes = ranks.outcomes()
    assert outcomes[1].died
    for other in (0, 2):
        assert outcomes[other].error == "PeerLost", outcomes[other]
        assert "rank 1" in outcomes[other].text
