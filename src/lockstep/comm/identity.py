"""What decides which memory a process can share: host, process namespace, user. Pure but for `Identity.mine`."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may contain any character, so count from the last parenthesis.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Identity:
    """What a rank tells the others about itself before they share memory."""

    rank: int
    """Rank in the group."""
    host: str
    """Host name, for messages."""
    boot: str
    """Boot id of the kernel: the same for all processes that share its memory, and for no others."""
    namespace: str
    """Process namespace: process numbers are comparable only within one."""
    user: int
    """Effective user id."""
    pid: int
    """Process number in that namespace."""
    started: int
    """Start time of the process, by which a reused number is recognised."""

    @classmethod
    def mine(cls, rank: int) -> Identity:
        """Return the identity of this process."""
        pid = os.getpid()
        return cls(
            rank=rank,
            host=socket.gethostname(),
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            namespace=str(Path("/proc/self/ns/pid").readlink()),
            user=os.geteuid(),
            pid=pid,
            started=start_time(pid) or 0,
        )

    def dumps(self) -> str:
        """Return the identity as text for a store."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str | bytes) -> Identity:
        """Read what `dumps` wrote."""
        return cls(**json.loads(text))


def why_not_shared(ranks: list[Identity]) -> str | None:
    """Return why these ranks cannot share memory, naming two that cannot, or None if they can."""
    first = ranks[0]
    advice = 'use backend "gloo" for this group'
    for other in ranks[1:]:
        if other.boot != first.boot:
            return (
                f"rank {other.rank} runs on host {other.host} and rank {first.rank} on host {first.host}: "
                f'"shm" needs all ranks of a group on one host; {advice}, or make one "shm" group per host'
            )
        if other.namespace != first.namespace:
            return (
                f"rank {other.rank} is in process namespace {other.namespace} and rank {first.rank} in "
                f"{first.namespace} (host {first.host}): containers that do not share a process namespace cannot share "
                f"memory; start them with a common one (docker run --pid=container:...), or {advice}"
            )
        if other.user != first.user:
            return (
                f"rank {other.rank} runs as user {other.user} and rank {first.rank} as user {first.user}: "
                f"shared memory is private to one user; start all ranks as the same user, or {advice}"
            )
    return None
