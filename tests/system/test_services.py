"""The services themselves: they come up, do what is asked, and leave nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.services import require
from tests.system.slurm import NODES, SlurmCluster, SlurmError, processes_of

if TYPE_CHECKING:
    from pathlib import Path


def test_srun_runs_a_task_on_each_node(slurm: SlurmCluster) -> None:
    done = slurm.run("srun", "-N2", "-n2", "printenv", "SLURMD_NODENAME")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == list(NODES)


def test_memory_can_be_asked_for(slurm: SlurmCluster) -> None:
    done = slurm.run("srun", "-N2", "-n2", "--mem=100", "sh", "-c", "squeue -h -j $SLURM_JOB_ID -o %m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100M", "100M"]
    too_much = slurm.run("srun", f"--mem={slurm.memory_mib + 1}", "true")
    assert too_much.returncode != 0
    assert "Memory specification can not be satisfied" in too_much.stderr


def test_two_clusters_do_not_disturb_each_other(slurm: SlurmCluster) -> None:
    with SlurmCluster() as other:
        assert other.env != slurm.env
        for cluster in (slurm, other):
            done = cluster.run("srun", "-N2", "-n2", "printenv", "SLURM_CONF")
            assert done.stdout.split() == [cluster.env["SLURM_CONF"]] * 2, done.stderr


def test_stop_leaves_nothing(slurm: SlurmCluster) -> None:
    cluster = SlurmCluster().start()
    folder = cluster.folder
    try:
        # A job that outlives the stop if it can: each task ignores the polite signals.
        stubborn = "trap '' TERM INT HUP; echo up; while :; do sleep 1; done"
        submitted = cluster.run(
            "sbatch", "-N2", "-n2", f"--output={folder}/job.txt", "--wrap", f"srun sh -c {stubborn!r}"
        )
        assert submitted.returncode == 0, submitted.stderr
        _wait_for_text(folder / "job.txt", "up\nup\n")
        assert {"munged", "slurmctld", "slurmd", "slurmstepd", "sh"} <= {p.name() for p in cluster.processes()}
    finally:
        cluster.stop()
    assert processes_of(folder) == []
    assert not folder.exists()
    cluster.stop()
    assert slurm.run("sinfo").returncode == 0


def test_failed_start_leaves_nothing_and_shows_the_logs() -> None:
    for program in ("munged", "slurmctld", "slurmd", "srun", "setpriv"):
        require(program)
    cluster = SlurmCluster()
    with pytest.raises(SlurmError, match=r"(?s)not up in time.*--- munged"):
        cluster.start(deadline=0.0)
    with pytest.raises(SlurmError, match="not running"):
        _ = cluster.folder


@pytest.mark.parametrize(
    ("launcher", "flags", "rank"),
    [
        ("openmpi", ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"], "OMPI_COMM_WORLD_RANK"),
        ("mpich", [], "PMI_RANK"),
    ],
)
def test_mpirun_numbers_its_ranks(request: pytest.FixtureRequest, launcher: str, flags: list[str], rank: str) -> None:
    mpirun = request.getfixturevalue(launcher)
    program = f"import os; print(os.environ[{rank!r}])"
    done = subprocess.run(
        [mpirun, *flags, "-n", "2", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"\d", done.stdout)) == ["0", "1"]


def _wait_for_text(file: Path, text: str, *, deadline: float = 30.0) -> None:
    until = time.monotonic() + deadline
    while not file.exists() or file.read_text() != text:
        assert time.monotonic() < until, f"{file} does not hold {text!r}"
        time.sleep(0.05)
