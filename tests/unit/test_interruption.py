"""After Ctrl-C one line says where a run stopped and how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.launch.interruption import interruption
from lockstep.train.records import Records
from lockstep.train.schema.rank_jsonl import StepLine


def write_steps(folder: Path, count: int) -> None:
    records = Records(folder, 0)
    for step in range(count):
        records.write(StepLine(step=step, epoch=0, loss=1.0, weight=1.0, total=0.1, began=1.0))
    records.close()


@pytest.mark.parametrize(
    ("done", "checkpoint", "expected"),
    [
        (0, None, "interrupted before the first step; nothing was trained"),
        (3, None, "interrupted at step 2; it has no checkpoint to go on from: --checkpoint-every N writes them"),
        (3, 2, "interrupted at step 2; go on from its checkpoint after step 1 with: lockstep run --resume 'my runs/a'"),
        (0, 2, "interrupted before the first step; go on from its checkpoint after step 1 with: lockstep run --resume"),
    ],
)
def test_the_line(done: int, checkpoint: int | None, expected: str, tmp_path: Path) -> None:
    if done:
        write_steps(tmp_path, done)
    if checkpoint is not None:
        (tmp_path / f"checkpoint-{checkpoint:06}.safetensors").touch()
    assert interruption(tmp_path, "my runs/a").startswith(expected)


def test_a_folder_that_was_never_made(tmp_path: Path) -> None:
    assert interruption(tmp_path / "none", "none").startswith("interrupted before the first step")
