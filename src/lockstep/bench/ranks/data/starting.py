"""A program that holds one side's data and starts ranks with it, as people's own do: torch is imported at its top.

    python -m lockstep.bench.ranks.data.starting '{"side": ..., "items": ...,
        "elements": ..., "ranks": ..., "how": ...}'

It prints what a start took and what the ranks hold, or why there was none, as JSON.

[Note: the program's own import] A spawned rank runs the program's imports again before it reads what it is handed,
and the program waits until it reads, once that is more than a pipe holds. So it is no detail of the measurement
that torch is among these imports: with a list of 2,000 tensors each rank then starts after the one before it has
imported torch, and with a handle of some bytes all import at once.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import wait
from typing import Any

import torch

from lockstep.bench.ranks.data.loader_epochs import PickleStamp, first_epoch
from lockstep.bench.ranks.data.names import LIST, SERVER
from lockstep.bench.ranks.data.sides import make

SECONDS = 120.0
NO_ANSWER = "no answer within"


def start(data: Any, size: int, ranks: int, how: str) -> dict[str, Any]:
    """Start ranks and wait for what they tell; `size` is that of the data in bytes."""
    context: Any = multiprocessing.get_context(how)
    if how == SERVER:
        context.set_forkserver_preload([first_epoch.__module__])
    pipes, processes, stamps, told = [], [], [], []
    began = time.time()
    try:
        together = context.Barrier(ranks)
        for rank in range(ranks):
            mine, theirs = context.Pipe(duplex=False)
            around = PickleStamp(), PickleStamp()
            handed = [around[0], data, around[1]]
            process = context.Process(target=first_epoch, args=(handed, rank, ranks, together, theirs), daemon=True)
            process.start()
            stamps.append(around)
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        told = _receive(pipes)
    except (OSError, RuntimeError, EOFError) as error:
        return {"why_not": _why(error)}
    finally:
        for process in processes:
            if not told:
                process.kill()
            process.join()
    pickling = sum(last.pickled - first.pickled for first, last in stamps)
    return {
        "start": max(one["first"] for one in told) - began,
        "handed": pickling + max(one["took"] for one in told),
        # A rank's heap moves by more than little data takes: then nothing is held, not less than nothing.
        "copies": max(0.0, sum(one["part"] - one["without"] for one in told) / size),
        **{name: max(one[name] for one in told) for name in ("descriptors", "private", "shared")},
    }


def _receive(pipes: list[Any]) -> list[dict[str, Any]]:
    """Return what each rank tells; the first that ends without a word is an EOFError, though others wait for it."""
    told: dict[Any, dict[str, Any]] = {}
    limit = time.monotonic() + SECONDS
    while len(told) < len(pipes):
        ready: list[Any] = wait([pipe for pipe in pipes if pipe not in told], limit - time.monotonic())
        if not ready:
            raise RuntimeError(f"{NO_ANSWER} {SECONDS:.0f} s")
        told |= {pipe: pipe.recv() for pipe in ready}
    return [told[pipe] for pipe in pipes]


def _why(error: Exception) -> str:
    text = str(error).rpartition(": ")[2] or type(error).__name__
    limit = f" (limit {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})" if "open files" in text else ""
    return text + limit


def main() -> None:
    """Start once, and say what came of it."""
    plan = json.loads(sys.argv[1])
    if plan["side"] == LIST and plan["how"] == SERVER:
        # Python hands a fork server at most 256 descriptors, so there a list goes by the names of its files.
        torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    values = torch.ones(plan["items"], plan["elements"])
    data = make(plan["side"], values)
    print(json.dumps(start(data, values.nbytes, plan["ranks"], plan["how"])))  # noqa: T201 - what this program is for


if __name__ == "__main__":
    main()
