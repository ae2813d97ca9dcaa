"""Jobs on a real Slurm: told to stop, failing, killed, at their time limit, in an array, cancelled.

All are submitted at once, because most of the time they wait, and on one cluster: each process that ran some of these
tests would submit all jobs to a cluster of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train.resume import attempts
from lockstep.train.schema.rank_jsonl import header_of, rank_path, read_rank
from lockstep.train.schema.run_json import read_setup
from lockstep.train.spec import RunSpec
from tests.commands import BIN, LOCKSTEP, RECIPES, Done, Marked, finish
from tests.system.slurm import SEARCH_PATH, SlurmCluster

RECIPE = RECIPES / "restarted.py"
SECONDS = 420.0
"""Until a hang is assumed: Slurm looks at its clock now and then, and a busy machine makes that longer."""
GONE_SECONDS = 6.0
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Jobs:
    """What was submitted."""

    cluster: SlurmCluster
    marked: Marked
    folder: Path
    numbers: dict[str, str]

    def lockstep(self, *arguments: str) -> Done:
        return self.marked.run([LOCKSTEP, *arguments], self.folder)

    def ended(self, name: str, run: Path | None = None, saying: str = "") -> str:
        """Wait until no job of this name is in the queue, and none comes back; return all their logs.

        A job that is requeued, by itself or because its node is gone, is for a moment in no queue: how long depends on
        how busy the machine is. Where `run` is given, it is waited for until that run has a result; where `saying` is,
        until the log has these words.
        """
        until = time.monotonic() + SECONDS
        seen = time.monotonic()
        while (
            (queue := self.queue(name))
            or time.monotonic() < seen + GONE_SECONDS
            or (run is not None and not (run / "result.json").exists())
            or saying not in self.log(name)
        ):
            assert time.monotonic() < until, f"{queue}\n{self.log(name)}"
            seen = time.monotonic() if queue else seen
            for line in queue.splitlines():
                number, state, reason = line.split(maxsplit=2)
                if (state, reason) == ("PENDING", "BeginTime"):  # Slurm lets a requeued job wait two minutes
                    self.cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now")
                if "held" in reason:  # and holds one that a node, while it goes down, could not start
                    self.cluster.run("scontrol", "release", number)
            time.sleep(0.3)
        return self.log(name)

    def queue(self, name: str) -> str:
        """Return the lines of the queue: no answer of a busy controller is not an empty queue."""
        until = time.monotonic() + SECONDS
        while True:
            asked = self.cluster.run("squeue", "--noheader", f"--name={name}", "--format=%i %T %r")
            if asked.returncode == 0:
                return asked.stdout
            assert time.monotonic() < until, asked.stderr
            time.sleep(0.3)

    def log(self, name: str) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob(f"{name}-*.log")))

    def run(self, name: str) -> Path:
        return self.folder / "runs" / f"{name}-{self.numbers[name]}"


@pytest.fixture(scope="module")
def jobs(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("jobs")
    numbers = {}
    marked = Marked(slurm.env)
    marked.env["PATH"] = f"{BIN}:{SEARCH_PATH}"
    without = folder / "bin"
    without.mkdir()
    for program in ("srun", "sbatch", "bash", "env", "sh"):
        (without / program).symlink_to(shutil.which(program, path=SEARCH_PATH) or program)
    for name, recipe, *options in (
        # Slurm looks at its clock now and then: the signal may come a minute early, when the rank must have begun, or
        # late, when there must be time to write a checkpoint and to requeue.
        ("limited", "limited", "--time", "3", "--notice", "100"),
        ("told", "told", "--nodes", "2", "--tasks-per-node", "1"),
        ("cursed", "cursed", "--requeues", "5"),
        ("killed", "killed", "--checkpoint-every", "1"),
        ("array", "recipe", "--array", "1-2"),
    ):
        one = Marked({**slurm.env, "LOCKSTEP_TEST_ONCE": str(folder / f"{name}.once")})
        one.env["LOCKSTEP_TEST_MARK"] = marked.mark
        # A container may have no scontrol: then a dependent job is submitted.
        one.env["PATH"] = str(without) if name == "killed" else marked.env["PATH"]
        arguments = ["--name", name, "--lanes", "4", "--checkpoint-every", "4", *options, "--submit", "--json"]
        done = one.run([LOCKSTEP, "sbatch", f"{RECIPE}:{recipe}", *arguments], folder)
        assert done.code == 0, done.text
        numbers[name] = json.loads(done.out)["job"]
    return Jobs(slurm, marked, folder, numbers)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return undisturbed(tmp_path_factory)


def undisturbed(folders: pytest.TempPathFactory, **asked: int) -> str:
    spec = RunSpec(recipe=str(RECIPE), lanes=4, threads=1, progress=False, **asked)  # type: ignore[arg-type]
    return read_finished(start_run(spec, folders.mktemp("alone") / "out")).result.digest


def test_a_job_that_is_told_to_stop_goes_on_to_the_same_bits(jobs: Jobs, digest: str) -> None:
    log = jobs.ended("told", jobs.run("told"))
    assert "\x1b" not in log, "a log is no terminal: no colours in it, and no lines cut to 80 columns"
    assert "told to stop by signal SIGUSR2: a checkpoint after step" in log, log
    assert "the job is started again: it stopped after step" in log, log
    run = read_finished(jobs.run("told"))
    assert run.result.digest == digest
    assert len(attempts(run.folder)) == 1
    header = header_of(read_rank(rank_path(run.folder, 1)))
    assert header is not None
    assert (header.job, header.size) == (jobs.numbers["told"], 2)


def test_a_job_at_its_time_limit_goes_on_to_the_same_bits(jobs: Jobs, digest: str) -> None:
    log = jobs.ended("limited", jobs.run("limited"))
    assert "told to stop by signal SIGUSR2" in log, log
    assert read_finished(jobs.run("limited")).result.digest == digest


def test_a_job_that_fails_twice_at_a_step_is_not_started_again_and_says_so(jobs: Jobs) -> None:
    log = jobs.ended("cursed", saying="the job is not started again")
    assert log.count("the job is started again") == 1, log
    assert "the job is not started again: it failed at step" in log
    assert "as the attempt before" in log
    assert "sample 37 is cursed" in log


def test_a_killed_job_goes_on_without_scontrol(jobs: Jobs, digest: str) -> None:
    log = jobs.ended("killed", jobs.run("killed"))
    assert "is submitted, and begins when job" in log, log
    run = read_finished(jobs.run("killed"))
    assert run.result.digest == digest
    assert [one.step for one in read_setup(run.folder).resumed] == [2]


def test_an_array_trains_once_for_each_seed(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> None:
    jobs.ended("array")
    number = jobs.numbers["array"]
    for seed in (1, 2):
        run = read_finished(jobs.folder / "runs" / f"array-{number}_{seed}")
        assert run.result.digest == undisturbed(tmp_path_factory, seed=seed)


def test_what_the_queue_and_the_records_say(jobs: Jobs) -> None:
    jobs.ended("told")
    done = jobs.lockstep("stats", jobs.numbers["told"])
    assert done.code == 0, done.text
    assert f"job {jobs.numbers['told']}, done" in done.out
    assert done.out.count("    CPU     [") == 2
    assert "advice: " in done.out
    listing = jobs.lockstep("jobs", "--json")
    assert jobs.numbers["told"] in {row["run"]["job"] for row in json.loads(listing.out) if row["run"]}
    unknown = jobs.lockstep("stats", "99999999")
    assert unknown.code == 2
    assert "no job 99999999 is in the queue" in unknown.err


def test_bad_input(jobs: Jobs) -> None:
    inside = Marked({**jobs.cluster.env, "SLURM_JOB_ID": "5"})
    done = inside.run([LOCKSTEP, "sbatch", str(RECIPE), "--submit"], jobs.folder)
    assert (done.code, "this is inside job 5" in done.err) == (2, True), done.text
    done = jobs.lockstep("sbatch", str(RECIPE), "--name", "big", "--mem", "1T", "--submit")
    assert done.code == 1
    assert "sbatch refused: " in done.err
    assert not (jobs.folder / "big.sbatch").exists()


def test_a_job_whose_node_is_lost_goes_on_elsewhere(jobs: Jobs, digest: str) -> None:
    once = jobs.folder / "lost.once"
    marked = Marked({**jobs.cluster.env, "LOCKSTEP_TEST_ONCE": str(once)})
    arguments = ["--name", "lost", "--lanes", "4", "--checkpoint-every", "1", "--submit", "--json"]
    done = marked.run([LOCKSTEP, "sbatch", f"{RECIPE}:slow", *arguments], jobs.folder)
    number = json.loads(done.out)["job"]
    run = jobs.folder / "runs" / f"lost-{number}"
    until = time.monotonic() + SECONDS
    while not list(run.glob("checkpoint-*.safetensors")):
        assert time.monotonic() < until
        time.sleep(0.1)
    node = jobs.cluster.run("squeue", "--noheader", f"--job={number}", "--format=%N").stdout.strip()
    jobs.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        once.touch()
        jobs.ended("lost", run)
    finally:
        jobs.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert read_finished(run).result.digest == digest
    assert len(attempts(run)) == 1


def test_a_cancelled_job_is_gone_and_stays_so(jobs: Jobs) -> None:
    done = jobs.lockstep("sbatch", f"{RECIPE}:slow", "--name", "gone", "--lanes", "4", "--submit", "--json")
    assert done.code == 0, done.text
    number = json.loads(done.out)["job"]
    path, until = rank_path(jobs.folder / "runs" / f"gone-{number}", 0), time.monotonic() + SECONDS
    while not path.exists() or '"step"' not in path.read_text():
        assert time.monotonic() < until
        time.sleep(0.2)
    assert f"job {number}, running" in jobs.lockstep("stats", number).out
    assert f'"number": "{number}"' in jobs.lockstep("jobs", "--json").out
    watching = jobs.marked.start([LOCKSTEP, "stats", number, "--watch"], jobs.folder)
    assert watching.stdout is not None
    assert f"job {number}, running" in watching.stdout.readline()
    assert jobs.cluster.run("scancel", number).returncode == 0
    assert "is started again" not in jobs.ended("gone")
    watched = finish(watching)
    assert watched.code == 0
    assert "unfinished" in watched.out
    for name in jobs.numbers:
        jobs.ended(name)
    assert jobs.marked.survivors(30.0) == []
    assert os.environ.get("SLURM_JOB_ID") is None
