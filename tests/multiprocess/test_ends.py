"""How a run ends when somebody ends it, and what it opens while it runs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from lockstep.report.collect import read_run
from lockstep.train.schema.rank_jsonl import header_of, read_rank
from tests.commands import LOCKSTEP, SECONDS, TINY, CommandLine, Marked, finish
from tests.contract.ways import crossed, make


def wait_for_steps(folder: Path) -> None:
    """Wait until every rank has done a few steps and the faulty one hangs."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        logs = list(folder.glob("rank-*.jsonl"))
        if len(logs) == 2 and all(len(path.read_text().splitlines()) >= 4 for path in logs):
            return
        time.sleep(0.05)
    raise AssertionError(f"no steps in {folder}")


ENDS = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}
"""The exit code of the command, by the signal that ends it."""


@pytest.mark.parametrize(
    ("name", "ending"), crossed(["spawn", "torchrun", "srun", "openmpi", "mpich"], ENDS, soaked=["openmpi", "mpich"])
)
def test_ended_from_outside(name: str, ending: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    number = signal.Signals[ending]
    _, marked = make(name, request, tmp_path)
    launcher = "mpirun" if "mpi" in name else name
    command = [LOCKSTEP, "run", f"{TINY}:hangs", "--workers", "2", "--launcher", launcher, "--out", "out"]
    process = marked.start(command, tmp_path)
    try:
        wait_for_steps(tmp_path / "out")
    finally:
        process.send_signal(number)
        done = finish(process)
    assert done.code == ENDS[ending], done.text
    assert "Traceback" not in done.err, done.text
    assert ("lockstep: interrupted at step " in done.err) == (number == signal.SIGINT), done.text
    assert marked.survivors() == []
    assert len(read_rank(tmp_path / "out" / "rank-0.jsonl")) >= 4


@pytest.mark.parametrize(
    ("fault", "launcher"),
    [("lock", "spawn"), pytest.param("stop", "spawn", marks=pytest.mark.soak), ("stop", "torchrun")],
)
def test_a_worker_that_runs_no_python_ends_with_the_command(fault: str, launcher: str, tmp_path: Path) -> None:
    """It holds the interpreter's lock in a call of C, or is stopped: only the kernel can end it."""
    marked = Marked()
    recipe = f"{TINY}:{'locks' if fault == 'lock' else 'hangs'}"
    process = marked.start(
        [LOCKSTEP, "run", recipe, "--workers", "2", "--launcher", launcher, "--out", "out"], tmp_path
    )
    try:
        wait_for_steps(tmp_path / "out")
        if fault == "stop":
            header = header_of(read_rank(tmp_path / "out" / "rank-1.jsonl"))
            assert header is not None
            os.kill(header.pid, signal.SIGSTOP)
    finally:
        process.kill()
        done = finish(process)  # a worker that lived on would hold the pipe of the output open
    assert done.code == -signal.SIGKILL, done.text
    assert marked.survivors() == []


def test_one_host_opens_no_port_to_the_network(tmp_path: Path) -> None:
    marked = Marked()
    process = marked.start([LOCKSTEP, "run", f"{TINY}:hangs", "--workers", "2", "--out", "out"], tmp_path)
    wait_for_steps(tmp_path / "out")
    listening = []
    for child in [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]:
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(child).net_connections(kind="inet")
            listening += [entry.laddr.ip for entry in found if entry.status == psutil.CONN_LISTEN]
    process.send_signal(signal.SIGINT)
    finish(process)
    assert set(listening) <= {"127.0.0.1", "::1"}, listening
    assert marked.survivors() == []


def test_not_finite_stops_the_run(cli: CommandLine) -> None:
    done = cli("run", f"{TINY}:nan", "--workers", "2", "--lanes", "4", "--out", "out")
    assert done.code == 1
    assert "the loss is nan at step 1, lane" in done.err, done.text


def test_uneven_last_batch_and_a_worker_that_runs_dry(tmp_path: Path, cli: CommandLine) -> None:
    """97 samples of batches of 12: the last holds one, and only one of four workers has it."""
    command = ["run", f"{TINY}:dry", "--lanes", "4", "--threads", "1", "--out"]
    done = cli(*command, "out", "--workers", "4")
    assert done.code == 0, done.text
    alone = cli(*command, "alone")
    assert alone.code == 0, alone.text
    assert read_run(tmp_path / "out").losses == pytest.approx(read_run(tmp_path / "alone").losses, rel=1e-5)


@pytest.mark.parametrize("recipe", ["mlp", "bytes"])
def test_torch_ddp_follows_single(recipe: str, tmp_path: Path, cli: CommandLine) -> None:
    """The same lanes, weights and dropout: the losses differ by the order of summation alone."""
    command = ["run", recipe, "--lanes", "2", "--threads", "1", "--steps", "4"]
    one = cli(*command, "--strategy", "single", "--out", "one")
    two = cli(*command, "--strategy", "torch-ddp", "--workers", "2", "--out", "two")
    assert (one.code, two.code) == (0, 0), one.text + two.text
    assert read_run(tmp_path / "two").losses == pytest.approx(read_run(tmp_path / "one").losses, rel=1e-4)


AT_IMPORT = """
import os, runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["lockstep", "run", {recipe!r}, "--out", "out"]
runpy.run_module("lockstep", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("name", ["typer", "torch", "lockstep.train.loop"])
def test_ctrl_c_while_importing(name: str, tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(AT_IMPORT.format(name=name, recipe=TINY))
    done = Marked().run([sys.executable, "start.py"], tmp_path)
    assert done.code == 130, done.text
    assert done.err.count("\n") == 1
    assert done.err.startswith("lockstep: interrupted")


def test_ctrl_c_in_a_terminal_while_the_fork_server_imports(tmp_path: Path) -> None:
    """A terminal sends it to every process of the command at once."""
    marked = Marked()
    command = [LOCKSTEP, "run", TINY, "--workers", "2", "--out", "out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=marked.env, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + SECONDS
    while not any("forkserver" in " ".join(child.cmdline()) for child in children(process.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)  # it is importing torch now
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert err == "lockstep: interrupted before anything was started\n"
    assert marked.survivors() == []


def children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def test_ctrl_c_says_where_it_stopped_and_how_to_go_on(tmp_path: Path) -> None:
    """By one worker, which is the command itself; on other launchers the same line comes from the starter."""
    marked = Marked()
    command = [LOCKSTEP, "run", TINY, "--steps", "1000000", "--checkpoint-every", "2", "--out", "out"]
    process = marked.start(command, tmp_path)
    deadline = time.monotonic() + SECONDS
    while not list((tmp_path / "out").glob("checkpoint-*.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130, done.text
    words = r"interrupted at step \d+; go on from its checkpoint after step \d+ with: lockstep run --resume out$"
    assert re.search(words, done.err.strip()), done.text
    assert "Traceback" not in done.err
    resumed = marked.run([LOCKSTEP, "run", "--resume", "out", "--steps", "1"], tmp_path)
    assert "is complete" in resumed.err, resumed.text
