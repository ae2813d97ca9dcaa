"""By hand on hosts that share no loopback: the same bits, and what goes wrong between hosts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.bench.ranks.namespaces import NamespaceHost, hosts, unavailable
from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train.schema.rank_jsonl import header_of, rank_path, read_rank
from lockstep.train.spec import RunSpec
from tests.commands import LOCKSTEP, RECIPES, TINY, Done, Marked, finish
from tests.services import require
from tests.system.host_names import names_for

PORT = 29611


def started(
    marked: Marked,
    places: Sequence[NamespaceHost],
    recipe: str,
    folders: Sequence[Path],
    *options: str,
    head: str = "",
    before: str = "",
) -> list:  # type: ignore[type-arg]
    """Start a rank at each place, in its folder; `before` is run by a shell on the last one."""
    head = head or (f"[{places[0].address}]" if ":" in places[0].address else places[0].address)
    common = ["--workers", str(len(places)), "--lanes", "4", "--threads", "1", *options]
    processes = []
    for rank, (host, folder) in enumerate(zip(places, folders, strict=True)):
        where = options and "--rendezvous" in options
        rendezvous = [] if where else ["--rendezvous", f"{head}:{PORT}"]
        command = [LOCKSTEP, "run", recipe, *common, "--rank", str(rank), *rendezvous]
        first = before if before and rank == len(places) - 1 else "true"
        command = ["unshare", "--uts", "sh", "-c", f'hostname "$0" && {first} && exec "$@"', host.name, *command]
        processes.append(marked.start(host.command(*command), folder))
    return processes


def dealt(made: Sequence[NamespaceHost], ranks: Sequence[int]) -> list[NamespaceHost]:
    """Return the host of every rank."""
    return [host for host, count in zip(made, ranks, strict=True) for _ in range(count)]


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    require("ip")
    require("tc")
    assert unavailable() is None


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one process gives."""
    spec = RunSpec(recipe=f"{TINY}:wide", lanes=4, threads=1, progress=False)
    return read_finished(start_run(spec, tmp_path_factory.mktemp("alone") / "out")).result.digest


@pytest.mark.parametrize(
    ("strategy", "ranks", "exchange"),
    [
        ("ddp", [1, 1], "messages over gloo"),
        ("ddp", [2, 2], "arena + gloo"),
        ("ddp", [3, 1], "arena + gloo"),
        ("ddp", [1, 1, 1, 1], "messages over gloo"),
        ("sharded", [2, 1], "weights in blocks over gloo"),
    ],
    ids=["1+1 over IPv6", "2+2", "3+1", "4x1, a name for the head", "sharded 2+1"],
)
def test_same_bits_on_hosts(strategy: str, ranks: list[int], exchange: str, digest: str, tmp_path: Path) -> None:
    """The bits are those of one process; the records say what went between the hosts."""
    marked, folders = Marked(), [tmp_path] * sum(ranks)
    options = ("--out", "out", "--strategy", strategy)
    with hosts(len(ranks), ipv6=ranks == [1, 1]) as made:
        places = dealt(made, ranks)
        if len(ranks) == 4:
            for host in made:  # a second card, which reaches nobody
                host.add_card("192.168.213.1")
            with names_for(made) as head:
                done = [finish(one) for one in started(marked, places, f"{TINY}:wide", folders, *options, head=head)]
        else:
            done = [finish(one) for one in started(marked, places, f"{TINY}:wide", folders, *options)]
    assert [one.code for one in done] == [0] * sum(ranks), [one.text for one in done]
    run = read_finished(tmp_path / "out")
    assert run.result.digest == digest
    assert run.result.exchange == exchange
    headers = [header_of(read_rank(rank_path(tmp_path / "out", rank))) for rank in range(sum(ranks))]
    assert {header.exchange for header in headers if header} == {exchange}
    assert f"exchange: {exchange}, optimizer: on slices" in done[0].out
    assert marked.survivors() == []


def test_a_lost_rank_ends_both_hosts(tmp_path: Path) -> None:
    """Rank 1 is lost; the ranks of the other host hear of it from the ranks that they talk to."""
    marked = Marked()
    with hosts() as made:
        processes = started(marked, dealt(made, [2, 2]), f"{TINY}:killed", [tmp_path] * 4, "--out", "out")
        done = [finish(one) for one in processes]
    assert all(one.code != 0 for one in done), [one.text for one in done]
    for rank in (0, 2, 3):
        assert f"rank {rank} on " in done[rank].err, done[rank].text
        assert "lost contact with another rank at step 3" in done[rank].err, done[rank].text
    assert marked.survivors() == []


def test_a_host_that_vanishes_is_named_on_all(tmp_path: Path) -> None:
    """The wire of the second host is cut in a step: nothing closes a connection, only silence follows."""
    marked = Marked()
    with hosts(3) as made:
        options = ("--out", "out", "--steps", "1000")
        processes = started(marked, dealt(made, [1, 2, 1]), f"{TINY}:slow", [tmp_path] * 4, *options)
        wait_for_steps(tmp_path / "out", 4)
        made[1].cut_wire()
        cut = time.monotonic()
        done = [finish(one) for one in processes]
        seconds = time.monotonic() - cut
    assert [one.code for one in done] == [1] * 4, [one.text for one in done]
    for rank in (0, 3):
        assert f"rank 1 on {made[1].name} failed" in done[rank].err, done[rank].text
        assert "(ranks 1, 2) does not answer any more" in done[rank].err, done[rank].text
    for rank in (1, 2):
        assert "(rank 0) does not answer any more" in done[rank].err, done[rank].text
    assert seconds < 60  # no test of speed: without the watch it would be half an hour
    assert marked.survivors() == []


def test_a_stuck_rank_on_another_host_is_ended(tmp_path: Path) -> None:
    """Rank 1 is in a call of C that keeps the interpreter: nothing that runs in its process could end it."""
    marked = Marked()
    with hosts() as made:
        options = ("--out", "out", "--stall-limit", "4")
        done = [finish(one) for one in started(marked, made, f"{TINY}:locks", [tmp_path] * 2, *options)]
    assert all(one.code != 0 for one in done), [one.text for one in done]
    assert f"rank 1 on {made[1].name} failed at step 1" in done[0].err, done[0].text
    assert "ended by --stall-limit 4" in done[0].err, done[0].text
    assert marked.survivors() == []


def test_a_file_is_no_meeting_point_for_two_hosts(tmp_path: Path) -> None:
    with hosts() as made:
        options = ("--out", "out", "--rendezvous", f"file://{tmp_path / 'meet'}")
        done = [finish(one) for one in started(Marked(), made, TINY, [tmp_path] * 2, *options)]
    assert [one.code for one in done] == [2, 2], [one.text for one in done]
    assert "the ranks are on 2 hosts: use --rendezvous host:port" in done[0].err


def test_recipes_that_differ_are_refused(tmp_path: Path) -> None:
    """The second host has another file under the same path."""
    mine, other = tmp_path / "mine.py", tmp_path / "other.py"
    shutil.copy(RECIPES / "tiny.py", mine)
    other.write_text(mine.read_text() + "\n# one line more\n")
    with hosts() as made:
        before = f"mount --bind {other} {mine}"
        processes = started(Marked(), made, "mine.py", [tmp_path] * 2, "--out", "out", before=before)
        done = [finish(one) for one in processes]
    assert all(one.code != 0 for one in done), [one.text for one in done]
    for one in done:
        assert "the recipe file differs between hosts" in one.err, one.text


def test_a_folder_that_is_not_shared_is_said(tmp_path: Path) -> None:
    """The second host has another file system where the first has the run folder."""
    (tmp_path / "place").mkdir()
    with hosts() as made:
        before = f"mount -t tmpfs none {tmp_path / 'place'}"
        options = ("--out", str(tmp_path / "place" / "out"))
        done: list[Done] = [
            finish(one) for one in started(Marked(), made, TINY, [tmp_path] * 2, *options, before=before)
        ]
    assert all(one.code != 0 for one in done), [one.text for one in done]
    for one in done:
        assert "is not shared: rank 1 on " in one.err, one.text


def wait_for_steps(folder: Path, steps: int) -> None:
    """Wait until rank 0 has written so many lines."""
    deadline = time.monotonic() + 120
    path = rank_path(folder, 0)
    while time.monotonic() < deadline:
        if path.is_file() and len(path.read_bytes().splitlines()) > steps:
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} has no {steps} steps")
