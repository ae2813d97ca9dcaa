"""Whether a job is started again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.cluster.requeueing import AttemptEnd, decide, read_ends
from lockstep.cluster.slurm_commands import outside
from lockstep.errors import BadInput
from tests.unit.report.folders import make_run

STOPPED, DONE = AttemptEnd("stopped", 10), AttemptEnd("done", 0)


def failed(step: int) -> AttemptEnd:
    return AttemptEnd("failed", step, "rank 1 on n1: ValueError: no")


@pytest.mark.parametrize(
    ("ends", "again", "words"),
    [
        ([STOPPED], True, "stopped after step 9; start 2 of at most 4"),
        ([failed(4)], True, "failed at step 4"),
        ([failed(4), failed(5)], True, "failed at step 5"),
        ([failed(4), failed(4)], False, "failed at step 4, as the attempt before: .* rank 1 on n1: ValueError: no"),
        ([failed(4), STOPPED, failed(4)], False, "as the attempt before"),
        ([failed(4), failed(6), failed(4)], True, "failed at step 4"),
        ([STOPPED, STOPPED, STOPPED], True, "start 4 of at most 4"),
        ([STOPPED, STOPPED, STOPPED, STOPPED], False, "started again 3 times already, the limit"),
        ([STOPPED, DONE], False, "complete"),
    ],
)
def test_decisions(ends: list[AttemptEnd], again: bool, words: str) -> None:
    decision = decide(ends, 3)
    assert decision.again is again
    assert re.search(words, decision.why), decision.why


def test_ends_are_read_from_the_run_folder(tmp_path: Path) -> None:
    assert [end.kind for end in read_ends(make_run(tmp_path / "run", strategy="single", workers=1, state="a"))] == [
        "done"
    ]
    with pytest.raises(BadInput, match="nothing was begun"):
        read_ends(tmp_path)


def test_a_nested_submission_inherits_nothing_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CONF", "SBATCH_ACCOUNT", "RANK", "MASTER_ADDR", "PMI_RANK", "KEPT"):
        monkeypatch.setenv(name, "7")
    left = {name for name, value in outside().items() if value == "7"}
    assert left == {"SLURM_CONF", "KEPT"}
