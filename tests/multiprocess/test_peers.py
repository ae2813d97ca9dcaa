"""Lightning and Accelerate train the same recipe: the same columns, a loss like stock DDP's, the same refusals."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.errors import BadInput, RunFailed
from lockstep.launch.start import start_run
from lockstep.registry import PEERS
from lockstep.report.collect import FinishedRun, read_finished
from lockstep.train.schema.rank_jsonl import StepLine
from lockstep.train.schema.result_json import Failed, read_result
from lockstep.train.spec import RunSpec
from tests.commands import TINY, CommandLine

STEPS = 24


def order(strategy: str, **fields: Any) -> RunSpec:
    base: dict[str, Any] = {"recipe": TINY, "lanes": 4, "threads": 1, "steps": STEPS, "progress": False, "workers": 2}
    return RunSpec(strategy=strategy, launcher="spawn", **{**base, **fields})


def fields_in(line: StepLine) -> set[str]:
    """Return the names of what a line has."""
    return set(msgspec.to_builtins(line))


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return read_finished(start_run(order("torch-ddp"), tmp_path_factory.mktemp("stock") / "run"))


ANY_RECIPE = [peer.name for peer in PEERS.all() if not peer.twins]
"""Those with twins of their own are in tests/system: they need an environment of their own."""


@pytest.mark.parametrize("peer", ANY_RECIPE)
def test_a_peer_trains_the_recipe(stock: FinishedRun, peer: str, tmp_path: Path) -> None:
    """Its order of samples is its own, so curves are compared, not steps."""
    run = read_finished(start_run(order(peer), tmp_path / "run"))
    assert run.setup.spec.launcher == (PEERS.get(peer).launcher or "itself")
    assert len(run.losses) == STEPS
    assert run.losses[0] == pytest.approx(stock.losses[0], rel=0.25)
    assert statistics.fmean(run.losses[-8:]) == pytest.approx(statistics.fmean(stock.losses[-8:]), rel=0.35)
    assert statistics.fmean(run.losses[-8:]) < statistics.fmean(run.losses[:8])
    assert run.result.threads == 1
    assert run.result.exchange == stock.result.exchange == "torch DDP over gloo"
    assert set(run.result.metrics) == {"accuracy"}
    assert [set(rank.parts) for rank in run.result.ranks] == [set(rank.parts) for rank in stock.result.ranks]
    assert [line.step for line in run.fingerprints] == [0, 1, 2, 4, 8, 16, 23]
    assert set(run.fingerprints[0].parameters) == set(stock.fingerprints[0].parameters)
    for mine, theirs in zip(run.steps, stock.steps, strict=True):
        assert [fields_in(line) for line in mine] == [fields_in(line) for line in theirs]
        assert [line.sent for line in mine] == [line.sent for line in theirs]
        assert {line.weight for line in mine} == {6.0}, "two lanes of three samples for each of two ranks"
        shares = [sum((line.seconds or {}).values()) / line.total for line in mine]
        assert statistics.median(shares) == pytest.approx(1.0, abs=0.05)


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the loss is nan at step 3, rank [01]"):
        start_run(order("lightning", recipe=f"{TINY}:nan", lanes=2), tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert isinstance(result, Failed)
    assert result.finite is False
    assert result.step == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lanes": 3}, "cannot be cut evenly over 2 workers: use --lanes 4"),
        ({"sync_batchnorm": True}, "has no SyncBatchNorm on the CPU"),
    ],
)
def test_refused(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        start_run(order("accelerate", **fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--launcher", "spawn"], "starts its own ranks on this host: launcher spawn cannot be used with it"),
        (["--nodes", "2"], "--nodes cannot be used with it"),
    ],
)
def test_its_launch_is_its_own(arguments: list[str], words: str, cli: CommandLine) -> None:
    done = cli("run", TINY, "--strategy", "lightning", "--workers", "2", *arguments)
    assert done.code == 2, done.text
    assert words in done.err


def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.train.preflight import preflight

    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(BadInput, match=r"pip install 'lockstep-train\[peers\]'"):
        preflight(order("lightning"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
