"""Which failure is the first cause, from the notes that ranks leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.errors import BadInput, PeerLost
from lockstep.train.failure import describe, finished, first_cause, how_it_ended, leave_note, report
from lockstep.train.records import Records
from lockstep.train.schema.error_json import Failure, Kind, read_failures
from lockstep.train.schema.rank_jsonl import EndLine, StepLine
from tests.unit.report.values import header


def note(folder: Path, rank: int, kind: Kind, time: float) -> None:
    assert leave_note(folder, Failure(rank=rank, host="host-a", step=4, kind=kind, text=f"text {rank}", time=time))


def log(folder: Path, rank: int, steps: int, *, end: bool = False) -> None:
    records = Records(folder, rank)
    records.write(header(rank, 2, "host-b"))
    for step in range(steps):
        records.write(StepLine(step=step, epoch=0, loss=1.0, weight=1.0, total=0.1, began=1.0))
    if end:
        records.write(EndLine(seconds=1.0, peak_memory=1, digest="0" * 64))
    records.close()


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
            True,
        ),
        (MemoryError(), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2 GiB."), True),
        (ValueError("out of memory is only a word here"), False),
    ],
)
def test_memory_that_ran_out_is_told_with_what_to_do(error: Exception, advised: bool) -> None:
    assert ("`lockstep fit RECIPE`" in describe(error, rank=0, step=0).text) == advised


def test_one_who_raised_comes_before_those_who_lost_contact(tmp_path: Path) -> None:
    note(tmp_path, 0, "contact", 1.0)
    note(tmp_path, 2, "contact", 1.5)
    note(tmp_path, 1, "own", 2.0)
    assert first_cause(tmp_path, 3, {}).rank == 1


def test_the_silent_one_comes_before_those_who_lost_contact(tmp_path: Path) -> None:
    log(tmp_path, 0, 5)
    log(tmp_path, 1, 5)
    note(tmp_path, 0, "contact", 1.0)
    cause = first_cause(tmp_path, 2, {1: -9})
    assert (cause.rank, cause.host, cause.step) == (1, "host-b", 5)
    assert "signal 9, SIGKILL" in report(cause)


def test_of_two_silent_ones_the_first_known_exit_counts(tmp_path: Path) -> None:
    log(tmp_path, 0, 2)
    log(tmp_path, 1, 2)
    assert first_cause(tmp_path, 2, {1: -9, 0: -15}).rank == 1


def test_a_rank_that_died_before_its_first_record_is_the_one_to_blame(tmp_path: Path) -> None:
    """Its file is there and empty, as it is when the disk was full: nobody's damage, and no other rank's fault."""
    Records(tmp_path, 0).close()
    Records(tmp_path, 1).close()
    cause = first_cause(tmp_path, 2, {1: -9}, {1: "host-c"})
    assert (cause.rank, cause.host, cause.step, cause.kind) == (1, "host-c", -1, "silent")
    assert report(cause).startswith(
        "rank 1 on host-c failed before the first step:\nthe process was killed by signal 9"
    )


def test_damaged_records_and_notes_do_not_hide_who_died(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").write_bytes(b"\0\0\n")
    (tmp_path / "rank-0.error.json").write_bytes(b"{")
    log(tmp_path, 1, 3)
    assert first_cause(tmp_path, 2, {1: -9}).step == 3


def test_a_death_after_the_last_step(tmp_path: Path) -> None:
    log(tmp_path, 0, 10)
    cause = first_cause(tmp_path, 1, {0: -9})
    assert "failed after step 10 of 10:" in report(cause, 10)
    assert "failed at step 10:" in report(cause, 11)


def test_one_that_is_done_is_not_to_blame(tmp_path: Path) -> None:
    log(tmp_path, 0, 2, end=True)
    log(tmp_path, 1, 2)
    assert finished(tmp_path, 0)
    assert not finished(tmp_path, 1)
    assert not finished(tmp_path, 2)
    assert first_cause(tmp_path, 2, {}).rank == 1


def test_refusal_is_told_without_decoration(tmp_path: Path) -> None:
    note(tmp_path, 1, "input", 5.0)
    note(tmp_path, 0, "own", 1.0)
    assert report(first_cause(tmp_path, 2, {})) == "text 1"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadInput("no"), "input"),
        (PeerLost("gone"), "contact"),
        (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1"), "contact"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "own"),
        (ValueError("x"), "own"),
        (SystemExit(0), "own"),
        (KeyboardInterrupt(), "own"),
    ],
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert describe(error, rank=0, step=0).kind == kind


def test_a_text_that_is_not_unicode_is_told_all_the_same(tmp_path: Path) -> None:
    failure = describe(ValueError("no file \udcff"), rank=0, step=0)
    assert leave_note(tmp_path, failure)
    assert "no file \\udcff" in read_failures(tmp_path)[0].text


def test_exit_codes_in_words() -> None:
    assert how_it_ended(-9) == (
        "the process was killed by signal 9, SIGKILL (out of memory kills look like this; "
        "`lockstep fit RECIPE` shows what fits)"
    )
    assert how_it_ended(-15) == "the process was killed by signal 15, SIGTERM"
    assert how_it_ended(3) == "the process exited with code 3 before the run was done"
    assert "unknown" in how_it_ended(-99)
