"""A Ragged in other processes: loader workers, ranks, and ones that are killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from lockstep.data import Ragged
from lockstep.recipe_file import load
from tests.commands import CommandLine
from tests.unit.data.test_cifar100_archive import make as make_archive

ITEMS = 600


@pytest.fixture(scope="module", autouse=True)
def servers() -> None:
    """Start Python's own helpers once, before any test looks around: they end with the process that they serve."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "lockstep.data.ragged", "psutil"])
    resource_tracker.ensure_running()
    forkserver.ensure_running()


def make() -> Ragged:
    return Ragged([(torch.full((i % 7, 2), i), f"text {i}", i) for i in range(ITEMS)])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_stock_loader_with_workers(method: str) -> None:
    ragged = make()
    loader = DataLoader(ragged, batch_size=64, num_workers=2, collate_fn=ragged.collate, multiprocessing_context=method)
    seen = []
    for values, texts, numbers in loader:
        assert texts == [f"text {number}" for number in numbers.tolist()]
        assert values.offsets.tolist()[-1] == sum(number % 7 for number in numbers.tolist())
        seen += numbers.tolist()
    assert seen == list(range(ITEMS))


def test_items_that_leave_a_worker_uncollated() -> None:
    """See [Note: storage per item]: what is sent is the item."""
    ragged = Ragged([torch.full((50,), i) for i in range(20)])
    loader = DataLoader(ragged, batch_size=5, num_workers=1, collate_fn=list, multiprocessing_context="fork")
    found = [item for batch in loader for item in batch]
    assert [int(item[0]) for item in found] == list(range(20))
    assert all(item.untyped_storage().nbytes() == 400 for item in found)


def work(ragged: Ragged, pipe: Connection) -> None:
    """Answer requests until there are none: what the process sees, or what it is to change."""
    pipe.send(len(list(Path("/proc/self/fd").iterdir())))
    while (request := pipe.recv()) is not None:
        if request == "write":
            ragged[1][0].fill_(-1)
            pipe.send(ragged[1][0].flatten().tolist())
        elif request == "handle":
            pipe.send(pickle.dumps(ragged))
        elif request == "memory":
            sum(int(item[0].sum()) for item in ragged)
            pipe.send(mapped())
        else:
            pipe.send(ragged[request][0].flatten().tolist())


def mapped() -> dict[str, int]:
    """Return how much of its mappings of ragged data this process has in memory, and how much of that alone."""
    maps = psutil.Process().memory_maps(grouped=False)
    ours = [part for part in maps if "lockstep-ragged" in part.path]
    alone = sum(part.private_clean + part.private_dirty for part in ours)
    return {"resident": sum(part.rss for part in ours), "alone": alone}


def start(ragged: Ragged, method: str) -> tuple[Any, Connection]:
    context: Any = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    process = context.Process(target=work, args=(ragged, theirs), daemon=True)
    process.start()
    return process, mine


def end(process: Any, pipe: Connection) -> None:
    pipe.send(None)
    process.join()
    process.close()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_write_reaches_nobody_else(method: str) -> None:
    ragged = make()
    (one, to_one), (two, to_two) = start(ragged, method), start(ragged, method)
    to_one.recv(), to_two.recv()
    to_one.send("write")
    assert to_one.recv() == [-1, -1]
    to_two.send(1)
    assert to_two.recv() == [1, 1]
    assert ragged[1][0].flatten().tolist() == [1, 1]
    end(one, to_one)
    end(two, to_two)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_owner_may_drop_it_once_the_process_is_started(method: str) -> None:
    process, pipe = start(make(), method)
    pipe.recv()
    pipe.send(5)
    assert pipe.recv() == [5] * 10
    pipe.send("handle")
    mine = pickle.loads(pipe.recv())
    end(process, pipe)
    assert mine[6][1] == "text 6", "whoever opened it holds it, even when the last owner is gone"


def test_a_reader_that_is_killed_harms_nobody() -> None:
    ragged = make()
    (one, to_one), (two, to_two) = start(ragged, "forkserver"), start(ragged, "forkserver")
    to_one.recv(), to_two.recv()
    to_one.send("write")
    to_one.recv()
    os.kill(one.pid, signal.SIGKILL)
    one.join()
    assert one.exitcode == -signal.SIGKILL
    one.close()
    to_two.send(9)
    assert to_two.recv() == [9, 9, 9, 9]
    assert ragged[9][1] == "text 9"
    end(two, to_two)


DEADLY = """
import os, signal, torch
from torch.utils.data import DataLoader
from lockstep.data import Ragged

ragged = Ragged([torch.full((i % 7,), i) for i in range(100)])

def read(items):
    if any(len(item) and int(item[0]) == 40 for item in items):
        os.kill(os.getpid(), signal.SIGKILL)
    return items

try:
    list(DataLoader(ragged, batch_size=8, num_workers=1, collate_fn=read))
except (RuntimeError, OSError, EOFError):
    pass  # torch says "killed by signal", or that the connection to the worker is gone
else:
    raise AssertionError("nobody was killed")
assert [item.tolist() for item in ragged] == [[i] * (i % 7) for i in range(100)]
os._exit(0)  # torch's own clean-up after a killed worker may fail
"""


def test_a_loader_worker_that_is_killed_while_reading() -> None:
    done = subprocess.run([sys.executable, "-c", DEADLY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_memory_once_and_descriptors_few() -> None:
    """Four processes read everything: none holds a page of it alone, and each opens a handful of files."""
    size = 40 * 2**20
    ragged = Ragged([(torch.full((2**20 // 8,), i), "", i) for i in range(size // 2**20)])
    many = Ragged([(torch.full((i % 3,), i), "", i) for i in range(5000)])
    processes = [start(data, "forkserver") for data in (many, ragged, ragged, ragged, ragged)]
    assert len({pipe.recv() for _, pipe in processes}) == 1, "descriptors must not grow with the items"
    for _, pipe in processes[1:]:
        pipe.send("memory")
        found = pipe.recv()
        assert found["resident"] >= size
        # the first to read has pages that nobody else has touched yet; they are the same pages later
    for _, pipe in processes[1:]:
        pipe.send("memory")
        assert pipe.recv()["alone"] < size // 100
    processes[1][1].send("write")
    processes[1][1].recv()
    processes[1][1].send("memory")
    assert processes[1][1].recv()["alone"] >= 2**20, "what was written is a copy of this process alone"
    for process, pipe in processes:
        end(process, pipe)


NO_ROOM = """
import torch, pytest
from lockstep.data import Ragged
from lockstep.errors import BadInput
ragged = Ragged([torch.zeros(1000) for _ in range(1000)])
assert len(ragged) == 1000
with pytest.raises(BadInput, match="No space left on device; free some space"):
    ragged.save("/dev/shm/data")
with pytest.raises(BadInput, match="No space left on device; free some space"):
    Ragged.write("/dev/shm/data", ragged)
import os
assert os.listdir("/dev/shm") == []
"""


def test_shared_memory_too_small_and_a_full_disk(tmp_path: Path) -> None:
    """Data in memory does not live in /dev/shm, so its size does not matter; a full one is an error."""
    if os.geteuid() != 0 and os.environ.get("CI") != "true":
        pytest.skip("mounting needs root")
    (tmp_path / "no_room.py").write_text(NO_ROOM)
    mounted = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} {tmp_path / 'no_room.py'}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_training_on_the_real_form_of_cifar100(tmp_path: Path, cli: CommandLine) -> None:
    """Two ranks train from one archive; a path with nothing there is refused."""
    path = make_archive(tmp_path, packed=True)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    common = ["cifar100", "--data", str(path), "--global-batch", "4", "--lanes", "2", "--steps", "2", "--threads", "1"]
    done = cli("run", *common, "--workers", "2", "--out", "out", env=env)
    assert done.code == 0, done.text
    done = cli("run", "cifar100", "--data", "nowhere", env=env)
    assert done.code == 2
    assert "no CIFAR-100 at" in done.err


def test_bytes_trains_from_a_ragged(cli: CommandLine) -> None:
    assert isinstance(load("bytes").dataset(), Ragged)
    done = cli("run", "bytes", "--workers", "2", "--steps", "2", "--out", "out")
    assert done.code == 0, done.text
