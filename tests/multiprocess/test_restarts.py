"""torchrun starts its ranks again after one was killed: the run goes on, to the same bits, with no user code."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train.resume import attempts
from lockstep.train.schema.rank_jsonl import header_of, rank_path, read_rank
from lockstep.train.schema.run_json import read_setup
from lockstep.train.spec import RunSpec
from tests.commands import BIN, LOCKSTEP, RECIPES, Marked, finish

RECIPE = str(RECIPES / "restarted.py")
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--max-restarts", "2", "-m", "lockstep"]


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = RunSpec(recipe=RECIPE, lanes=4, threads=1, progress=False)
    return read_finished(start_run(spec, tmp_path_factory.mktemp("alone") / "out")).result.digest


@pytest.mark.parametrize(
    ("every", "step"), [(["--checkpoint-every", "2"], 4), pytest.param([], None, marks=pytest.mark.soak)]
)
def test_torchrun_goes_on_after_a_killed_worker(
    tmp_path: Path, digest: str, every: list[str], step: int | None
) -> None:
    """Two lanes each: the eleventh call of the loss is in step 5. Without a checkpoint the run begins anew."""
    marked = Marked({"LOCKSTEP_TEST_ONCE": str(tmp_path / "once")})
    done = marked.run([*TORCHRUN, "run", f"{RECIPE}:killed", "--lanes", "4", "--threads", "1", *every], tmp_path)
    assert done.code == 0, done.text
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_finished(folder).result.digest == digest
    assert len(attempts(folder)) == 1
    assert [one.step for one in read_setup(folder).resumed] == ([] if step is None else [step])
    assert marked.survivors() == []


def test_a_signal_stops_a_run_at_a_steps_end_and_the_command_goes_on(tmp_path: Path, digest: str) -> None:
    """Under spawn, with `--continue`, on two workers and then on four; the third time it is complete."""
    marked = Marked({"LOCKSTEP_TEST_ONCE": str(tmp_path / "once")})
    common = ["--lanes", "4", "--threads", "1", "--out", "run", "--continue"]
    first = marked.run([LOCKSTEP, "run", f"{RECIPE}:told", "--workers", "2", *common], tmp_path)
    assert first.code == 75, first.text
    assert "told to stop by signal SIGUSR2: a checkpoint after step 2 is written" in first.err
    second = marked.run([LOCKSTEP, "run", f"{RECIPE}:told", "--workers", "4", *common], tmp_path)
    assert second.code == 0, second.text
    assert read_finished(tmp_path / "run").result.digest == digest
    assert read_setup(tmp_path / "run").resumed[0].written_by == "ddp on 2 workers"
    third = marked.run([LOCKSTEP, "run", f"{RECIPE}:told", "--workers", "4", *common], tmp_path)
    assert third.code == 0
    assert digest[:12] in third.out
    assert marked.survivors() == []


def test_the_signal_to_the_command_reaches_its_workers(tmp_path: Path, digest: str) -> None:
    once = tmp_path / "once"
    marked = Marked({"LOCKSTEP_TEST_ONCE": str(once)})
    common = ["--workers", "2", "--lanes", "4", "--threads", "1", "--out", "run", "--continue"]
    running = marked.start([LOCKSTEP, "run", f"{RECIPE}:slow", *common], tmp_path)
    path, until = rank_path(tmp_path / "run", 1), time.monotonic() + 60
    while not (path.exists() and header_of(read_rank(path)) and '"step"' in path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGUSR2)
    done = finish(running)
    assert done.code == 75, done.text
    once.touch()
    assert marked.run([LOCKSTEP, "run", f"{RECIPE}:slow", *common], tmp_path).code == 0
    assert read_finished(tmp_path / "run").result.digest == digest
    assert marked.survivors() == []
