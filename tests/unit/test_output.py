"""Output that cannot be written is lost, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.output import LossyFile, lossy_stream

FULL = Path("/dev/full")
SAYS = """
import sys
from lockstep.output import lost_output, output_may_be_lost
with output_may_be_lost() as files:
    for stream in (sys.stdout, sys.stderr):
        print("\u2192", "x" * 100_000, file=stream, flush=True)
        print("more", file=stream)
open(sys.argv[1], "w").write(lost_output(files) or "nothing")
"""


def test_a_full_device_takes_everything_and_says_why() -> None:
    descriptor = os.open(FULL, os.O_WRONLY)
    file = LossyFile(descriptor)
    stream = lossy_stream(None, file)
    print("lost", file=stream, flush=True)
    print("lost again", file=stream, flush=True)
    os.close(descriptor)
    assert file.lost is not None
    assert file.lost.strerror == "No space left on device"


def test_what_can_be_written_is_written_whole(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    file = LossyFile(descriptor)
    print("→" * 100_000, file=lossy_stream(None, file), flush=True)
    os.close(descriptor)
    assert file.lost is None
    assert (tmp_path / "out").read_text(encoding="utf-8") == "→" * 100_000 + "\n"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (">/dev/full 2>/dev/full", "some output could not be written: No space"),
        (">&- 2>&-", "nothing"),
        ("", "nothing"),
    ],
    ids=["full", "closed", "a reader that went away"],
)
def test_a_process_goes_on(where: str, told: str, tmp_path: Path) -> None:
    command = f'exec "$0" -c "$1" "$2" {where}'
    with subprocess.Popen(
        ["sh", "-c", command, sys.executable, SAYS, str(tmp_path / "told")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        assert process.wait(60) == 0
    assert (tmp_path / "told").read_text().startswith(told)


def test_a_stream_that_somebody_put_there_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    from lockstep.output import output_may_be_lost

    before = sys.stdout
    with output_may_be_lost() as files:
        assert sys.stdout is before
        print("seen")
    assert files == []
    assert capsys.readouterr().out == "seen\n"
