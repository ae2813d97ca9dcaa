"""What a worker uses, as it sees itself."""

from __future__ import annotations

import time
from pathlib import Path

from lockstep.train.records import Records
from lockstep.train.schema.rank_jsonl import UsageLine, read_rank
from lockstep.train.usage_sampler import UsageSampler, cpu_seconds, memory_bytes


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_cpu_time_and_memory_of_this_process_are_counted() -> None:
    before = cpu_seconds()
    burn(0.3)  # the system counts in hundredths of a second
    assert cpu_seconds() - before >= 0.2
    assert memory_bytes() > 2**20


def test_a_run_of_no_length_has_a_look_too(tmp_path: Path) -> None:
    records = Records(tmp_path, 0)
    with UsageSampler(records, "cpu"):
        burn(0.02)
    records.close()
    lines = read_rank(tmp_path / "rank-0.jsonl")
    assert lines
    assert all(isinstance(line, UsageLine) and line.gpu is None and line.memory > 2**20 for line in lines)
    assert max(line.cpus for line in lines if isinstance(line, UsageLine)) > 0


def test_a_run_that_failed_ends_with_what_was_written_before(tmp_path: Path) -> None:
    records = Records(tmp_path, 0)
    try:
        with UsageSampler(records, "cpu"):
            raise ValueError
    except ValueError:
        records.close()
    assert not any(isinstance(line, UsageLine) for line in read_rank(tmp_path / "rank-0.jsonl"))
