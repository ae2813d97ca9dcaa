"""By hand on two hosts that share no loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train.schema.rank_jsonl import header_of, rank_path, read_rank
from lockstep.train.spec import RunSpec
from tests.commands import LOCKSTEP, TINY, Done, Marked, finish
from tests.services import require
from tests.system.hosts import ADDRESSES, two_hosts


def train(cwd: Path, marked: Marked, hosts: list[int], recipe: str, *, rendezvous: str, lanes: int = 4) -> list[Done]:
    """Start so many ranks on each of two hosts, and wait for all."""
    places = [node for node, ranks in enumerate(hosts) for _ in range(ranks)]
    common = ["--workers", str(len(places)), "--lanes", str(lanes), "--threads", "1", "--out", "out"]
    with two_hosts() as names:
        started = [
            marked.start(
                [
                    *("ip", "netns", "exec", names[node], LOCKSTEP, "run", recipe, *common),
                    *("--rank", str(rank), "--rendezvous", rendezvous),
                ],
                cwd,
            )
            for rank, node in enumerate(places)
        ]
        return [finish(process) for process in started]


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one process gives."""
    spec = RunSpec(recipe=f"{TINY}:uneven", lanes=4, threads=1, progress=False)
    return read_finished(start_run(spec, tmp_path_factory.mktemp("alone") / "out")).result.digest


@pytest.mark.parametrize(
    ("hosts", "exchange"), [([1, 1], "collectives over gloo"), ([2, 2], "arena + gloo")], ids=["1+1", "2+2"]
)
def test_by_hand_on_two_hosts(hosts: list[int], exchange: str, digest: str, tmp_path: Path) -> None:
    """The bits are those of one process; the records say what went between the hosts."""
    require("ip")
    marked = Marked()
    done = train(tmp_path, marked, hosts, f"{TINY}:uneven", rendezvous=f"{ADDRESSES[0]}:29611")
    assert [one.code for one in done] == [0] * sum(hosts), [one.text for one in done]
    run = read_finished(tmp_path / "out")
    assert run.result.digest == digest
    assert run.result.exchange == exchange
    headers = [header_of(read_rank(rank_path(tmp_path / "out", rank))) for rank in range(sum(hosts))]
    assert {header.exchange for header in headers if header} == {exchange}
    assert f"exchange: {exchange}, optimizer: on slices" in done[0].out
    assert marked.survivors() == []


def test_a_lost_rank_ends_both_hosts(tmp_path: Path) -> None:
    """Rank 1 is lost; the ranks of the other host hear of it from the ranks that they talk to."""
    require("ip")
    marked = Marked()
    done = train(tmp_path, marked, [2, 2], f"{TINY}:killed", rendezvous=f"{ADDRESSES[0]}:29612")
    assert all(one.code != 0 for one in done), [one.text for one in done]
    for rank in (0, 2, 3):
        assert f"rank {rank} on " in done[rank].err, done[rank].text
        assert "lost contact with another rank at step 3" in done[rank].err, done[rank].text
    assert marked.survivors() == []


def test_a_file_is_no_meeting_point_for_two_hosts(tmp_path: Path) -> None:
    require("ip")
    done = train(tmp_path, Marked(), [1, 1], TINY, rendezvous=f"file://{tmp_path / 'meet'}")
    assert [one.code for one in done] == [2, 2], [one.text for one in done]
    assert "the ranks are on 2 hosts: use --rendezvous host:port" in done[0].err
