"""Ranks for tests: processes that form a group and run functions of the tests."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

from lockstep.launch.process_exit import exit_now
from tests.devices import ON_CPU, backend_of, device_of

# Ranks are forked from a process that has imported torch and run nothing: they start in milliseconds, not seconds.
_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "torch.nn.parallel", "tests.warm"])


def warm_up() -> None:
    """Start the process that ranks are forked from; else the first test would be blamed for leaving it behind."""
    forkserver.ensure_running()


@dataclass(frozen=True)
class Outcome:
    """How a function ended on one rank."""

    value: Any = None
    error: str | None = None
    """Name of the exception's type."""
    text: str = ""
    """Its message."""
    trace: str = ""
    died: bool = False
    seconds: float = 0.0


def on_cpu(value: Any) -> Any:
    """Return the value with its tensors on the CPU: no others can be sent to another process."""
    import torch
    from torch.utils._pytree import tree_map_only

    return value if ON_CPU else tree_map_only(torch.Tensor, torch.Tensor.cpu, value)


def _serve(pipe: Connection, rank: int, size: int, backend: str, path: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    import lockstep  # noqa: F401 - registers shm

    torch.set_num_threads(1)
    if not ON_CPU:
        torch.accelerator.set_device_index(torch.device(device_of(rank)).index)
    if backend:
        dist.init_process_group(
            backend,
            init_method=f"file://{path}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=seconds),
        )
    while True:
        task = pipe.recv()
        if task is None:
            break
        number, function, args = task
        began = time.monotonic()
        try:
            value = on_cpu(function(rank, size, *args))
            outcome = Outcome(value=value, seconds=time.monotonic() - began)
        except Exception as error:
            outcome = Outcome(
                error=type(error).__name__,
                text=str(error),
                trace=traceback.format_exc(),
                seconds=time.monotonic() - began,
            )
        pipe.send((number, outcome))
    if dist.is_initialized():
        dist.destroy_process_group()
    pipe.send(None)
    exit_now(0)  # without the interpreter's shutdown: nothing of the tests is left to do there


class Ranks:
    """A group of processes; a context manager that leaves none behind."""

    def __init__(self, size: int, backend: str = "shm", seconds: float = 60.0) -> None:
        self.size = size
        self.backend = backend = backend_of(backend)
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self._started, self._given_up = [0] * size, [0] * size
        self.processes: list[Any] = []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_serve,
                args=(theirs, rank, size, backend, f"{self._folder.name}/store", seconds),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return int(pid)

    def start(self, function: Callable[..., Any], *args: Any, ranks: list[int] | None = None) -> None:
        for rank in range(self.size) if ranks is None else ranks:
            self._started[rank] += 1
            self._pipes[rank].send((self._started[rank], function, args))

    def outcomes(self, ranks: list[int] | None = None, seconds: float = 60.0) -> dict[int, Outcome]:
        """Collect how the started function ended; a rank that died is an outcome too."""
        waiting = set(range(self.size) if ranks is None else ranks)
        found: dict[int, Outcome] = {}
        deadline = time.monotonic() + seconds
        while waiting:
            ready = wait([self._pipes[r] for r in waiting], max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank in waiting:  # a late answer is not the next test's
                    self._given_up[rank] = self._started[rank]
                raise TimeoutError(f"ranks {sorted(waiting)} did not answer within {seconds} s")
            for rank in sorted(waiting):
                if self._pipes[rank] in ready:
                    try:
                        number, outcome = self._pipes[rank].recv()
                    except (EOFError, ConnectionError):
                        number, outcome = self._started[rank] + 1, Outcome(died=True)
                    if number > self._given_up[rank]:
                        found[rank] = outcome
                        waiting.discard(rank)
        return found

    def attempt(self, function: Callable[..., Any], *args: Any) -> list[Outcome]:
        """Run a function on all ranks and return how it ended on each."""
        self.start(function, *args)
        found = self.outcomes()
        return [found[rank] for rank in range(self.size)]

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function on all ranks and return its values; the first traceback is raised here."""
        outcomes = self.attempt(function, *args)
        for rank, outcome in enumerate(outcomes):
            assert not outcome.died, f"rank {rank} died"
            assert outcome.error is None, f"rank {rank}: {outcome.trace}"
        return [outcome.value for outcome in outcomes]
