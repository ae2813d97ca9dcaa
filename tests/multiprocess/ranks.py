"""A pool of ranks that is started once: each test sends a function to some of them, and gets what they return."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANKS = 3
SECONDS = 60


def backends() -> list[str]:
    """Return the backends of the CPU that are registered here."""
    import lockstep  # noqa: F401 - registers shm, where there is one

    return [name for name in ("gloo", "shm") if name in dist.Backend.backend_list]


@dataclass(frozen=True)
class Raised:
    """How a function ended on a rank, if not well."""

    kind: str
    text: str


class Ranks:
    """Three processes, and a group of the first 2 and of all 3 on every backend."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def call(self, backend: str, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `function(group, *arguments)` on the first `size` ranks; an error on one of them is an error here."""
        results = self.try_call(backend, size, function, *arguments)
        for rank, result in enumerate(results):
            assert not isinstance(result, Raised), f"rank {rank}: {result.text}"
        return results

    def try_call(self, backend: str, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Do the same, and return errors as `Raised`."""
        for pipe in self._pipes[:size]:
            pipe.send((backend, size, function, arguments))
        results = []
        for rank, pipe in enumerate(self._pipes[:size]):
            assert pipe.poll(SECONDS), f"rank {rank} gave no answer in {SECONDS} s"
            results.append(pipe.recv())
        return results


@contextlib.contextmanager
def started() -> Iterator[Ranks]:
    """Start the ranks, and end them."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = zip(*(context.Pipe() for _ in range(RANKS)), strict=True)
        path = str(Path(folder) / "meet")
        processes = [context.Process(target=_rank, args=(rank, path, theirs[rank])) for rank in range(RANKS)]
        try:
            for process in processes:
                process.start()
            for pipe in theirs:
                pipe.close()
            yield Ranks(list(ours))
            for pipe in ours:
                pipe.close()
            for process in processes:
                process.join(10)
        finally:
            for process in processes:
                process.kill()
                process.join()
                process.close()


def _rank(rank: int, path: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    names = backends()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS)
    groups = {
        (name, size): dist.new_group(list(range(size)), backend=name) for name in names for size in range(2, RANKS + 1)
    }
    while True:
        try:
            backend, size, function, arguments = pipe.recv()
        except EOFError:
            break
        result: object
        try:
            result = function(groups[backend, size], *arguments)
        except Exception as error:
            result = Raised(type(error).__name__, f"{error}\n{traceback.format_exc()}")
        pipe.send(result)
    dist.destroy_process_group()
