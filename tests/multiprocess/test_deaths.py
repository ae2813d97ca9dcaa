"""Kills drawn over start-up, training and end: the report, the exit code, the digest after `--resume`, nothing left.

The instants are drawn by fixed seeds, so that every run of the suite kills at the same ones.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train.spec import RunSpec
from tests.commands import LOCKSTEP, RECIPES, Marked, finish
from tests.contract.ways import crossed, make

RECIPE = str(RECIPES / "deaths.py")
STEPS = 16
TMPDIR_CHARACTERS = 125
SHARED = ("torchinductor_",)
"""What processes of other tests, which run at the same time, may have made."""
PHASES = ("model", "step", "end")
LAUNCHERS = ("spawn", "torchrun", "srun", "openmpi", "mpich")
REPORT_SECONDS = 30
"""From a death to the end of the command: seconds on an idle machine; what only a time-out ends takes minutes."""


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the run that nobody kills."""
    spec = RunSpec(recipe=RECIPE, lanes=2, threads=1, progress=False)
    return read_finished(start_run(spec, tmp_path_factory.mktemp("undisturbed") / "out")).result.digest


def long_folder(parent: Path) -> Path:
    """Make a folder for temporary files whose path is too long for a socket."""
    folder = parent / "t".ljust(TMPDIR_CHARACTERS - len(str(parent)) - 1, "t")
    folder.mkdir()
    assert len(str(folder)) == TMPDIR_CHARACTERS
    return folder


@pytest.mark.parametrize(("name", "phase"), crossed(LAUNCHERS, PHASES, soaked=["openmpi", "mpich"]))
def test_a_rank_is_killed(name: str, phase: str, request: pytest.FixtureRequest, tmp_path: Path, digest: str) -> None:
    draw = random.Random(f"{name} {phase}")
    rank, step = draw.randrange(2), draw.randrange(5, STEPS)
    _, marked = make(name, request, tmp_path)
    marked.env["LOCKSTEP_TEST_DEATH"] = f"{rank} {phase}" + (f" {step}" if phase == "step" else "")
    marked.env["LOCKSTEP_TEST_DEATH_TIME"] = str(tmp_path / "died")
    ours = name in ("spawn", "torchrun")  # MPI and Slurm keep folders of their own there
    if ours:
        marked.env["TMPDIR"] = str(long_folder(tmp_path))
    launcher = "mpirun" if "mpi" in name else name
    command = [LOCKSTEP, "run", RECIPE, "--workers", "2", "--launcher", launcher, "--lanes", "2", "--out", "out"]
    done = marked.run([*command, "--checkpoint-every", "4"], tmp_path)
    assert time.time() - float((tmp_path / "died").read_text()) < REPORT_SECONDS, done.text
    where = {"model": "before the first step", "step": f"at step {step}", "end": f"after step {STEPS} of {STEPS}"}
    assert done.code == 1, done.text
    assert f"failed {where[phase]}:" in done.err, done.text
    assert f"lockstep: rank {rank} on " in done.err, done.text
    assert "signal 9, SIGKILL" in done.err, done.text
    assert marked.survivors() == []
    assert not [path.name for path in (tmp_path / "out").glob(".*")]
    if ours:
        assert left_in(Path(marked.env["TMPDIR"])) == []
    if phase == "step":
        del marked.env["LOCKSTEP_TEST_DEATH"]
        again = marked.run([LOCKSTEP, "run", "--resume", "out"], tmp_path)
        assert again.code == 0, again.text
        assert read_finished(tmp_path / "out").result.digest == digest


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(SHARED))


@pytest.mark.parametrize(
    ("number", "turn"),
    [
        (signal.SIGKILL, 0),
        pytest.param(signal.SIGKILL, 1, marks=pytest.mark.soak),
        (signal.SIGHUP, 0),
        (signal.SIGQUIT, 0),
    ],
)
def test_the_command_is_killed(number: signal.Signals, turn: int, tmp_path: Path) -> None:
    """At an instant between its first line and its last: no process is left, and no file outside the run folder."""
    draw = random.Random(f"{number} {turn}")
    marked = Marked()
    marked.env["TMPDIR"] = str(long_folder(tmp_path))
    command = [
        LOCKSTEP,
        "run",
        RECIPE,
        "--workers",
        "2",
        "--steps",
        "100000",
        "--checkpoint-every",
        "3",
        "--out",
        "out",
    ]
    process = marked.start(command, tmp_path)
    time.sleep(draw.uniform(0.2, 5.0))
    process.send_signal(number)
    done = finish(process)
    assert done.code == (-number if number is signal.SIGKILL else 128 + number), done.text
    assert "Traceback" not in done.err, done.text
    assert marked.survivors() == []
    assert left_in(Path(marked.env["TMPDIR"])) == []
    assert not list(tmp_path.glob("out/.*"))


@pytest.mark.parametrize("kibibytes", [300_000, 600_000])
def test_a_limited_address_space_has_a_reason(kibibytes: int, tmp_path: Path) -> None:
    """Whichever process finds no room: the last line says so, and not `Aborted.`."""
    command = f"ulimit -v {kibibytes}; exec {LOCKSTEP} run {RECIPE} --workers 2 --out out"
    done = Marked().run(["sh", "-c", command], tmp_path)
    assert done.code in (1, 2), done.text
    assert "Aborted." not in done.err
    assert "lockstep: " in done.err, done.text
