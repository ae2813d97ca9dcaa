"""The example that hands a run to a tracker: the tracker has every step, and the bits are those without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.report.collect import read_finished
from tests.commands import CommandLine

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.soak  # another project's program, which is slow to start
def test_a_run_is_kept_for_weights_and_biases(tmp_path: Path, cli: CommandLine) -> None:
    pytest.importorskip("wandb")
    arguments = ["--steps", "6", "--eval-every", "3", "--threads", "1"]
    # The tracker starts a process of its own, which ends with the command's.
    for name, start in (("tracked_recipe", cli.apart), ("my_recipe", cli)):
        done = start("run", str(EXAMPLES / f"{name}.py"), *arguments, "--out", name)
        assert done.code == 0, done.text
    plain, tracked = (read_finished(tmp_path / name) for name in ("my_recipe", "tracked_recipe"))
    assert tracked.result.digest == plain.result.digest
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert all(name in content for name in (b"learning_rate", b"evaluation/accuracy", b"tracked_recipe"))
