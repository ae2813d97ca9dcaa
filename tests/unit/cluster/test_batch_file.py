"""The batch file: its order, its quoting, and that the shell reads it as it was meant."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from lockstep.cluster.batch_file import BatchFile, Requeue
from lockstep.cluster.fitting import fitted
from lockstep.cluster.profiles import load_profile
from lockstep.cluster.request import Request

ODD = "/tmp/a b/$(touch x)`id`\"'}"


def made(**asked: object) -> BatchFile:
    site = load_profile("zih")
    request, _ = fitted(Request(name="train", nodes=2, partition="ml", gpus_per_node=6, time="1:00:00"), site)
    plain = BatchFile(
        request=request,
        recipe="/home/me/train.py",
        arguments=("--strategy", "ddp", "--checkpoint-every", "50"),
        python="/home/me/.venv/bin/python",
        path=Path("/home/me/train.sbatch"),
        runs=Path("/home/me/runs"),
        profile=site,
    )
    return replace(plain, **asked)  # type: ignore[arg-type]


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_directives_are_sorted_and_those_of_the_site() -> None:
    text = made().text()
    lines = directives(text)
    assert lines == sorted(lines)
    assert {"--mem=250000", "--cpus-per-task=7", "--gres=gpu:6", "--ntasks-per-node=6", "--signal=USR2@90"} <= set(
        lines
    )
    assert {"--signal=USR2@90", "--open-mode=append", "--requeue", "--partition=ml", "--time=1:00:00"} <= set(lines)
    assert "module load modenv/ml" in text
    assert "srun --cpus-per-task=7 --kill-on-bad-exit=1 --wait=60" in text
    before = text[: text.index("set -eo pipefail")].splitlines()
    assert all(line.startswith("#") or not line for line in before), "Slurm reads directives up to the first command"


def test_the_types_of_gpus_are_in_the_sites_own_form() -> None:
    site = load_profile("alvis")
    request, _ = fitted(Request(name="x", gpus_per_node=2, gpu="A100"), site)
    assert "--gpus-per-node=A100:2" in directives(made(request=request, profile=site).text())
    request = Request(name="x", gpus_per_node=2)
    assert "--gpus-per-node=2" in directives(made(request=request, profile=None).text())


def test_never_again_is_neither_signal_nor_requeue() -> None:
    text = made(requeue=Requeue(limit=0)).text()
    assert "requeue" not in text
    assert "--signal" not in text
    dependent = made(requeue=Requeue(dependent=True)).text()
    assert "--no-requeue" in directives(dependent)
    assert "--dependent" in dependent


def run_with(text: str, folder: Path, code: int, **variables: str) -> tuple[list[str], int]:
    """Run a batch file with a bash whose srun, module and python only tell how they were called."""
    told = folder / "told"
    stub = f'told() {{ printf "%s\\n" "$@" >> {told}; }}\nmodule() {{ told module "$@"; }}\n'
    stub += f'srun() {{ told srun "$@"; return {code}; }}\npython() {{ told python "$@"; }}\n'
    (folder / "job.sh").write_text(stub + text)
    done = subprocess.run(
        ["bash", str(folder / "job.sh")], env={"PATH": "/usr/bin:/bin", **variables}, cwd=folder, check=False
    )
    return told.read_text().splitlines(), done.returncode


def test_the_shell_reads_odd_names_as_they_are(tmp_path: Path) -> None:
    odd = ODD.replace("/tmp", str(tmp_path))
    text = made(recipe=f"{odd}.py", out=Path(odd), arguments=("--data", odd), python="python").text()
    called, code = run_with(text, tmp_path, 0, SLURM_JOB_ID="7")
    assert code == 0
    assert called[called.index("run") + 1] == f"{odd}.py"
    assert called[called.index("--data") + 1] == odd
    assert called[called.index("--out") + 1] == odd
    assert not (tmp_path / "x").exists()


def test_an_array_trains_once_for_each_seed(tmp_path: Path) -> None:
    text = made(request=replace(made().request, array="0-3"), python="python").text()
    called, _ = run_with(text, tmp_path, 0, SLURM_JOB_ID="9", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3")
    assert called[called.index("--seed") + 1] == "3"
    assert called[called.index("--out") + 1] == "/home/me/runs/train-7_3"
    own = made(request=replace(made().request, array="0-3"), arguments=("--seed", "5")).text()
    assert 'SLURM_ARRAY_TASK_ID"' not in own.partition("srun")[2].partition("--out")[0]


def test_what_comes_after_a_failure_is_asked_for_and_the_code_is_kept(tmp_path: Path) -> None:
    called, code = run_with(made(python="python").text(), tmp_path, 75, SLURM_JOB_ID="7")
    assert code == 75
    assert called[called.index("requeue") + 1] == "/home/me/runs/train-7"
    (tmp_path / "told").unlink()
    called, _ = run_with(
        made(python="python").text(), tmp_path, 75, SLURM_JOB_ID="8", LOCKSTEP_RUN="/home/me/runs/train-7"
    )
    assert called[called.index("--out") + 1] == "/home/me/runs/train-7"
