"""A disk that fills up while a run writes to it: a small file system of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.errors import RunFailed
from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train.resume import read_standing, resumed_spec
from lockstep.train.schema.rank_jsonl import rank_path, read_rank, steps_of
from lockstep.train.schema.run_json import read_setup
from lockstep.train.spec import RunSpec
from tests.commands import RECIPES, TINY, CommandLine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 16 KiB; needs root."""
    if os.geteuid() != 0 and os.environ.get("CI") != "true":
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_the_disk_fills_up_in_the_middle(small_disk: Path, cli: CommandLine) -> None:
    out = small_disk / "out"
    done = cli("run", TINY, "--workers", "2", "--epochs", "50", "--out", str(out))
    assert done.code == 1, done.text
    assert "No space left on device" in done.err
    assert "make room, or choose another --out" in done.err
    assert read_setup(out).spec.workers == 2
    for rank in range(2):
        steps = [line.step for line in steps_of(read_rank(rank_path(out, rank)))]
        assert steps == list(range(len(steps)))
    assert not list(out.glob(".*"))


def test_the_disk_fills_up_with_checkpoints(small_disk: Path, tmp_path: Path) -> None:
    """The one before stays whole, and with more room the run goes on to the digest of an unbroken one."""
    out = small_disk / "out"
    order = RunSpec(
        recipe=f"{RECIPES / 'resumed.py'}:large",
        strategy="ddp",
        workers=2,
        launcher="spawn",
        threads=1,
        steps=8,
        progress=False,
        checkpoint_every=2,
    )
    subprocess.run(["mount", "-o", "remount,size=640k", str(small_disk)], check=True)
    with pytest.raises(RunFailed, match=r"cannot write the checkpoint .*: No space left on device") as failed:
        start_run(order, out)
    assert "What was written before it is whole: make room" in str(failed.value)
    assert not list(out.glob(".*"))
    assert sorted(path.name for path in out.glob("*.safetensors")) == [
        "checkpoint-000002.safetensors",
        "checkpoint-000004.safetensors",
    ]
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    again = start_run(resumed_spec(read_standing(out), {}), out)
    whole = start_run(order, tmp_path / "whole")
    digests = [read_finished(folder).result.digest for folder in (again, whole)]
    assert digests[0] == digests[1]


def test_a_disk_that_is_full_already(small_disk: Path, cli: CommandLine) -> None:
    with contextlib.suppress(OSError):
        (small_disk / "ballast").write_bytes(b"x" * 2**20)
    out = small_disk / "out"
    done = cli("run", TINY, "--out", str(out))
    assert done.code == 2, done.text
    assert "No space left on device" in done.err
    assert not out.exists()


def test_the_disk_fills_up_with_the_final_weights(small_disk: Path) -> None:
    """Every rank hears of it, and no draft stays."""
    out = small_disk / "out"
    spec = RunSpec(
        recipe=f"{RECIPES / 'resumed.py'}:large",
        strategy="ddp",
        workers=2,
        launcher="spawn",
        threads=1,
        steps=2,
        progress=False,
    )
    subprocess.run(["mount", "-o", "remount,size=100k", str(small_disk)], check=True)
    with pytest.raises(RunFailed, match=r"cannot write .*final\.safetensors: No space left on device") as failed:
        start_run(spec, out)
    assert "What was written before is whole; make room" in str(failed.value)
    assert not list(out.glob(".*"))
    assert not list(out.glob("*.safetensors"))
