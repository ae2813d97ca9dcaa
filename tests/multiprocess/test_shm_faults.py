"""What can go wrong is an error that names who and where, on every rank, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.comm import segment
from tests.multiprocess import faults
from tests.ranks import Outcome, Ranks

# The groups' own time limit: a test that ends before it was not saved by it.
LIMIT = 60.0


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3, seconds=LIMIT) as ranks:
        yield ranks


def _named(outcome: Outcome, rank: int) -> None:
    assert outcome.error == "PeerLost", outcome.trace or outcome
    assert re.search(rf"\brank {rank}\b.*died", outcome.text), outcome.text


@pytest.mark.parametrize("background", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("phase", list(faults.PHASES))
def test_a_death_in_any_phase_is_named_on_every_other_rank(phase: str, background: bool) -> None:
    with Ranks(3, seconds=LIMIT) as ranks:
        ranks.start(faults.all_reduce_and_die, 1, phase, background)
        outcomes = ranks.outcomes(seconds=LIMIT / 3)
    assert outcomes[1].died
    _named(outcomes[0], 1)
    _named(outcomes[2], 1)


def test_a_death_is_named_while_another_rank_is_late_too() -> None:
    """Rank 2 waits for rank 0 first, which is alive and never comes: it stands for one that waits elsewhere."""
    with Ranks(3, seconds=LIMIT) as ranks:
        ranks.start(faults.die_beside_a_late_rank, 1, 0)
        outcomes = ranks.outcomes(seconds=LIMIT / 3)
    _named(outcomes[2], 1)


@pytest.mark.parametrize("kind", ["broadcast", "all_gather", "reduce_scatter", "all_to_all", "scatter", "barrier"])
def test_a_death_in_any_collective_is_named(kind: str) -> None:
    with Ranks(3, seconds=LIMIT) as ranks:
        ranks.start(faults.collective_and_die, kind, 2)
        outcomes = ranks.outcomes(seconds=LIMIT / 3)
    _named(outcomes[0], 2)
    _named(outcomes[1], 2)


@pytest.mark.parametrize("way", ["recv", "any", "send"])
def test_a_dead_partner_of_a_message_is_named(way: str) -> None:
    with Ranks(2, seconds=LIMIT) as ranks:
        ranks.start(faults.message_to_or_from, way, 1)
        outcomes = ranks.outcomes(seconds=LIMIT / 3)
    _named(outcomes[0], 1)


def test_a_timeout_says_who_was_missing_and_where() -> None:
    with Ranks(3, seconds=1) as ranks:
        ranks.start(faults.absent, 2)
        outcomes = ranks.outcomes()
    for rank in (0, 1):
        assert outcomes[rank].error == "PeerLost"
        assert "all_reduce #1 (sum, 5 x float32)" in outcomes[rank].text
        assert outcomes[rank].text.startswith(f"Timed out after 1 s in rank {rank}: all_reduce")
        missing = outcomes[rank].text.split("missing:")[1]
        assert "rank 2" in missing
        assert "rank 0" not in missing


def test_a_limit_on_waiting_is_honoured(three: Ranks) -> None:
    first, second, last = three.run(faults.impatient)
    for text in (first, second):
        assert "all_reduce #" in text
        assert "not done within the 0.2 s" in text
    assert last == ""


def test_a_monitored_barrier_names_all_that_are_missing() -> None:
    with Ranks(3) as ranks:
        ranks.start(faults.monitored)
        outcome = ranks.outcomes()[0]
    assert outcome.error == "PeerLost"
    assert "barrier" in outcome.text
    assert "rank 1" in outcome.text
    assert "rank 2" in outcome.text


def test_a_message_that_never_comes_times_out() -> None:
    with Ranks(2, seconds=1) as ranks:
        ranks.start(faults.never_sent)
        outcome = ranks.outcomes()[0]
    assert outcome.error == "PeerLost"
    assert outcome.text.startswith("Timed out after 1 s: rank 0: recv from rank 1 (tag 5): no message came")


def test_a_rank_that_left_is_named() -> None:
    with Ranks(3, seconds=LIMIT) as ranks:
        ranks.start(faults.leave_early)
        outcomes = ranks.outcomes(seconds=LIMIT / 3)
    for rank in (0, 2):
        assert outcomes[rank].error == "PeerLost"
        assert re.search(r"rank 1 .*has left the group", outcomes[rank].text)


@pytest.mark.parametrize(
    ("how", "sides"),
    [
        ("kind", ("all_reduce", "broadcast")),
        ("op", ("sum", "max")),
        ("dtype", ("10 x float32", "10 x float64")),
        ("size", ("10 x float32", f"{faults.MANY} x float32")),
        ("root", ("root 0", "root 1")),
        ("order", ("all_reduce", "barrier")),
        ("async", ("10 x float32", "10 x float64")),
        ("splits", ("sends", "expects")),
    ],
)
def test_a_mismatch_is_raised_on_all_ranks_with_both_sides(three: Ranks, how: str, sides: tuple[str, str]) -> None:
    three.start(faults.differ, how)
    for outcome in three.outcomes(seconds=LIMIT / 3).values():
        assert outcome.error == "Mismatch", outcome
        assert all(side in outcome.text for side in sides), outcome.text
        assert "rank 2" in outcome.text
    three.run(faults.still_works)


def test_a_message_of_another_length_is_refused() -> None:
    with Ranks(2) as ranks:
        ranks.start(faults.wrong_length)
        outcome = ranks.outcomes()[1]
    assert outcome.error == "Mismatch"
    assert "4 x torch.float32" in outcome.text
    assert "3 x torch.float32 from rank 0" in outcome.text


def test_tensors_of_another_device_are_refused(three: Ranks) -> None:
    three.start(faults.elsewhere)
    for outcome in three.outcomes().values():
        assert outcome.error == "BadInput"
        assert "meta" in outcome.text
    three.run(faults.still_works)


@pytest.mark.parametrize("what", ["expanded", "expanded gather", "quantized", "quantized gather", "nested"])
def test_a_tensor_that_cannot_be_exchanged_is_refused_and_the_group_goes_on(three: Ranks, what: str) -> None:
    three.start(faults.unfit, what)
    for outcome in three.outcomes().values():
        assert outcome.error == "BadInput", outcome
        assert what.partition(" ")[0] in outcome.text
    three.run(faults.still_works)


def test_a_forked_child_is_no_rank(three: Ranks) -> None:
    """It would complete the collective of its parent, and its exit would end the group."""
    for text in three.run(faults.forked):
        assert re.search(r"BadInput process \d+ was forked from process \d+, which is rank \d of this group", text)


def test_a_group_that_was_destroyed_says_so(three: Ranks) -> None:
    for texts in three.run(faults.destroyed):
        for text in texts:
            assert text == "PeerLost this group was destroyed (destroy_process_group) on this rank: make a new one"


def test_too_many_open_files_name_their_limit(tmp_path: Path) -> None:
    with Ranks(2, backend="") as ranks:
        ranks.start(faults.few_files, str(tmp_path / "store"))
        for outcome in ranks.outcomes().values():
            assert outcome.error == "BadInput", outcome
            assert "raise `ulimit -n`" in outcome.text


def test_a_limit_that_is_too_small_is_refused_on_all_ranks_with_numbers(tmp_path: Path) -> None:
    with Ranks(2, backend="") as ranks:
        ranks.start(faults.limited, str(tmp_path / "store"))
        for outcome in ranks.outcomes().values():
            assert outcome.error == "BadInput", outcome
            assert re.search(r"needs [\d.]+ MiB of shared memory", outcome.text)


def test_a_store_of_ones_own_serves_one_group_after_the_other(tmp_path: Path) -> None:
    with Ranks(2, backend="") as ranks:
        ranks.run(faults.own_store, str(tmp_path / "store"))


def test_no_port_is_open_with_a_file_store(three: Ranks) -> None:
    assert three.run(faults.open_ports) == [[], [], []]


def test_waiting_uses_no_processor() -> None:
    with Ranks(2) as ranks:
        waited, _ = ranks.run(faults.idle)
    assert waited < 0.5  # of two seconds


def test_more_ranks_than_cores_all_get_on() -> None:
    with Ranks(2 * (os.cpu_count() or 1) + 2) as ranks:
        ranks.run(faults.rounds_of, 200)


def test_groups_leave_no_descriptor_behind(three: Ranks) -> None:
    three.run(faults.groups_come_and_go, 2)
    before = three.run(faults.descriptors)
    three.run(faults.groups_come_and_go, 5)
    assert three.run(faults.descriptors) == before


def _traces() -> set[str]:
    """Return files in /dev/shm and processes that map a segment."""
    found = {str(p) for p in Path("/dev/shm").iterdir()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "memfd:lockstep" in (process / "maps").read_text():
                found.add(process.name)
        except OSError:
            continue
    return found


def test_nothing_is_left_after_all_ranks_are_killed_at_once() -> None:
    with Ranks(3) as ranks:
        ranks.start(faults.wait_for_ever)
        pids = [ranks.pid(rank) for rank in range(3)]
        deadline = time.monotonic() + 30
        while not {str(pid) for pid in pids} <= _traces():
            assert time.monotonic() < deadline, "the ranks never mapped a segment"
            time.sleep(0.05)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        ranks.outcomes()
        for process in ranks.processes:
            process.join()
    left = _traces()
    assert not {str(pid) for pid in pids} & left
    assert not [name for name in left if "lockstep" in name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_open_a_segment() -> None:
    descriptor = segment.create(4096, "a test")
    try:
        code = (
            "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "try: os.open(sys.argv[1], os.O_RDWR)\n"
            "except PermissionError: print('refused')\n"
        )
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    finally:
        os.close(descriptor)
    assert done.stdout.strip() == "refused"


def _unshare_works() -> bool:
    try:
        return (
            subprocess.run(
                ["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False, capture_output=True
            ).returncode
            == 0
        )
    except FileNotFoundError:
        return False


SCRIPT = """
import sys, torch, lockstep, torch.distributed as dist
from datetime import timedelta
path, rank = sys.argv[1], int(sys.argv[2])
try:
    dist.init_process_group("shm", init_method=f"file://{path}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
except lockstep.errors.BadInput as error:
    print(error)
"""


@pytest.mark.skipif(not _unshare_works(), reason="needs the right to make a process namespace")
def test_ranks_in_another_namespace_are_refused_on_both_sides(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text("import lockstep.errors\n" + SCRIPT)
    command: list[Any] = [sys.executable, script, tmp_path / "store"]
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    ranks = [
        subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True),
        subprocess.Popen([*apart, *command, "1"], stdout=subprocess.PIPE, text=True),
    ]
    for rank in ranks:
        text, _ = rank.communicate(timeout=60)
        assert "rank 1 is in process namespace" in text
        assert "rank 0 in" in text
        assert "gloo" in text
