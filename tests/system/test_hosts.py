"""By hand on two hosts that share no loopback."""

from __future__ import annotations

from pathlib import Path

from lockstep.report.collect import read_run
from tests.commands import LOCKSTEP, TINY, Marked, finish
from tests.services import require
from tests.system.hosts import ADDRESSES, two_hosts


def test_by_hand_on_two_hosts(tmp_path: Path) -> None:
    require("ip")
    marked = Marked()
    arguments = [LOCKSTEP, "run", TINY, "--workers", "2", "--threads", "1", "--out", "out"]
    with two_hosts() as names:
        started = [
            marked.start(
                ["ip", "netns", "exec", name, *arguments, "--rank", str(rank), "--rendezvous", f"{ADDRESSES[0]}:29611"],
                tmp_path,
            )
            for rank, name in enumerate(names)
        ]
        done = [finish(process) for process in started]
    assert [one.code for one in done] == [0, 0], [one.text for one in done]
    assert read_run(tmp_path / "out").done


def test_a_file_is_no_meeting_point_for_two_hosts(tmp_path: Path) -> None:
    require("ip")
    marked = Marked()
    with two_hosts() as names:
        started = [
            marked.start(
                [
                    *("ip", "netns", "exec", name, LOCKSTEP, "run", TINY, "--workers", "2", "--rank", str(rank)),
                    *("--rendezvous", f"file://{tmp_path / 'meet'}", "--out", "out"),
                ],
                tmp_path,
            )
            for rank, name in enumerate(names)
        ]
        done = [finish(process) for process in started]
    assert [one.code for one in done] == [2, 2], [one.text for one in done]
    assert "the ranks are on 2 hosts: meet at --rendezvous host:port" in done[0].err
