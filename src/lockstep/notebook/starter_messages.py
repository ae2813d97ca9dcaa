"""What the kernel and the process that starts its workers tell each other: one request, then messages, as JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class StarterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel asks for."""

    task: Literal["run", "function", "compare"]
    """Train a recipe, call a function on every worker, or train a recipe several ways."""
    folder: str
    """The private folder with what cells define; see payload.py."""
    out: str
    """The run folder, or that of the comparison."""
    given: dict[str, Any]
    """Fields of RunSpec that were asked for."""
    nodes: int | None = None
    """srun: over how many hosts."""
    launcher_args: tuple[str, ...] = ()
    """More arguments for srun or mpirun."""
    resume: bool = False
    """Whether to go on with the run in `out`."""
    strategies: tuple[str, ...] | None = None
    """Of a comparison; None: all but the peers."""
    workers: tuple[int, ...] = ()
    """Of a comparison."""
    lanes: tuple[int | None, ...] = (None,)
    """Of a comparison."""
    repeats: int | None = None
    """Of a comparison."""
    time_limit: float | None = None
    """Of a comparison, in seconds."""
    peers: bool = False
    """Whether a comparison has the peers too."""
    command: str = ""
    """What a comparison's report says that it was asked for by."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What is told to the kernel."""

    kind: Literal["say", "is a recipe", "done", "refused", "failed", "interrupted"]
    """`say` and `is a recipe` come on the way, one of the others last."""
    text: str = ""
    """For the user."""
