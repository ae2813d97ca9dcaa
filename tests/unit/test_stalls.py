"""Ranks that do not move: who is named, when, and where it is."""

from __future__ import annotations

import faulthandler
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from lockstep.launch.stall_watch import USAGE, Moves, StallWatch, Still, culprits, told
from lockstep.train.records import Records
from lockstep.train.schema.rank_jsonl import StepLine, UsageLine
from lockstep.train.stack_dump import (
    FIRST_SECONDS,
    LEAST_SECONDS,
    MULTIPLE,
    StackDump,
    allowed_seconds,
    innermost,
    main_stack,
    stack_path,
    waits,
)
from tests.unit.report.values import header

WAITS = '  File "/x/lockstep/comm/sync.py", line 90 in _wait\n  File "/x/lockstep/comm/small.py", line 66 in all_reduce'
STUCK = '  File "/home/me/train.py", line 46 in loss\n  File "/x/lockstep/strategies/base.py", line 9 in step'


@pytest.mark.parametrize(
    ("steps", "limit", "seconds"),
    [
        ([], None, FIRST_SECONDS),
        ([], 10.0, FIRST_SECONDS),
        ([], 1000.0, 1000.0),
        ([0.1] * 9, None, LEAST_SECONDS),
        ([0.1] * 9 + [10.0] * 30, None, MULTIPLE * 10.0),
        ([0.1], 10.0, 5.0),
        ([100.0], 10_000.0, MULTIPLE * 100.0),
    ],
)
def test_how_long_a_rank_may_stand_still(steps: list[float], limit: float | None, seconds: float) -> None:
    assert allowed_seconds(steps, limit) == seconds


def still(rank: int, step: int, stack: str) -> Still:
    return Still(rank=rank, header=None, step=step, usual=0.1, stack=stack)


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([still(0, 4, WAITS), still(1, 4, STUCK)], [1]),
        ([still(0, 4, WAITS), still(1, 4, "")], [1]),
        ([still(0, 4, WAITS), still(1, 3, WAITS)], [1]),
        ([still(0, 4, WAITS), still(1, 4, WAITS)], [0, 1]),
    ],
    ids=["in its own code", "stopped", "behind", "all wait"],
)
def test_who_is_named(ranks: list[Still], named: list[int]) -> None:
    assert [one.rank for one in culprits({one.rank: one for one in ranks})] == named


def test_a_dump_of_this_process_is_read_back(tmp_path: Path) -> None:
    def inner(file: int) -> None:
        faulthandler.dump_traceback(file, all_threads=True)

    with tempfile.TemporaryFile() as file:
        file.write(b"Timeout (0:01:00)!\n")
        file.flush()
        inner(file.fileno())
        file.seek(0)
        text = file.read().decode().replace("Current thread", "Thread")
    stack = main_stack(text)
    assert innermost(stack).startswith(f"{__file__}, line ")
    assert innermost(stack).endswith(", in inner")
    assert not waits(stack)
    assert (main_stack(""), innermost("")) == ("", "")


def test_a_rank_that_moves_leaves_no_stack(tmp_path: Path) -> None:
    with StackDump(tmp_path, 3, None) as dump:
        assert stack_path(tmp_path, 3).exists()
        dump.moved([0.1])
        dump.moved([0.1])
    assert not list(tmp_path.iterdir())


def test_a_rank_that_does_not_move_leaves_its_stack(tmp_path: Path) -> None:
    with StackDump(tmp_path, 0, 0.2) as dump:
        dump.moved([0.01])
        deadline = time.monotonic() + 30
        while "line" not in stack_path(tmp_path, 0).read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert "test_a_rank_that_does_not_move_leaves_its_stack" in stack_path(tmp_path, 0).read_text()


def made(folder: Path, *steps: int) -> None:
    for rank, count in enumerate(steps):
        records = Records(folder, rank)
        records.write(header(rank, len(steps), "elsewhere"))
        for step in range(count):
            records.write(StepLine(step=step, epoch=0, loss=1.0, weight=1.0, total=0.5, began=1.0))
        records.close()


def test_one_line_says_who_has_not_moved_and_again_after_twice_as_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, 3, 2)
    watch = StallWatch(tmp_path, 2, None)
    for now in (0.0, 30.0, 59.0):
        watch.look(now)
    assert capsys.readouterr().err == ""
    for now in (63.0, 64.0, 100.0, 127.0):
        watch.look(now)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        f"lockstep: rank 1 on elsewhere (process 1) has not moved for {seconds} s" for seconds in (63, 127)
    ]
    assert "in step 2; its last step took 0.5 s" in lines[0]
    with open(tmp_path / "rank-1.jsonl", "ab") as file:
        file.write(b"{")
    watch.look(128.0)
    watch.look(150.0)
    assert capsys.readouterr().err == "", "it has moved"


def test_what_is_said_of_a_rank() -> None:
    one = still(1, 4, STUCK)
    assert told(one, 61.4) == (
        "rank 1 has not moved for 61 s, in step 4; its last step took 0.1 s. It is at /home/me/train.py, line 46, in "
        "loss (all of it: rank-1.stack.txt in the run folder)"
    )


def test_samples_of_use_are_no_moves(tmp_path: Path) -> None:
    """A rank that is stuck goes on sampling; a half-written line counts when it is whole; a new attempt counts anew."""
    path = tmp_path / "rank-0.jsonl"
    moves = Moves(path)
    assert moves.count() == 0
    usage = msgspec.json.encode(UsageLine(time=1.0, cpus=0.5, memory=5)) + b"\n"
    assert usage.startswith(USAGE)
    path.write_bytes(b'{"kind":"header"}\n' + usage + b'{"kind":"step"')
    assert moves.count() == 1
    with path.open("ab") as file:
        file.write(b"}\n" + usage)
    assert moves.count() == 2
    path.write_bytes(b'{"kind":"header"}\n')
    assert moves.count() == 1
