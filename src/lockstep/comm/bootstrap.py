"""The ranks of a group find each other through the store and map one segment.

      rank 0                         store                         rank r
    1 set   who/0          ------>            <------      set   who/r
    2 read  who/*          <------            ------>      read  who/*    all raise if memory cannot be shared
    3 create the segment, write the token
      set   segment        ------>            ------>  4   open /proc/<pid of 0>/fd/<n>, map it, compare the token
      read  mapped/*       <------            <------  5   set   mapped/r   "ok", or the error
    6 all read mapped/*: an error on one rank is raised on all. Rank 0 closes its descriptor.

No network port is used.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from lockstep.comm import segment
from lockstep.comm.identity import Identity, why_not_shared
from lockstep.comm.segment_layout import TOKEN_BYTES
from lockstep.errors import BadInput, PeerLost

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from lockstep.torch_compat.distributed import Store

_OK = "ok"


@dataclass(frozen=True)
class Member:
    """This process as a member of a group that is being created."""

    store: Store
    rank: int
    size: int
    timeout: timedelta
    what: str
    """What is being created, for error messages."""


def new_prefix(member: Member, name: str) -> str:
    """Return a key prefix that no earlier group on the same store has used."""
    # Every rank keeps its own count, so all ranks agree without waiting for each other.
    return f"{name}/{member.store.add(f'{name}/generation/{member.rank}', 1)}"


def gather(member: Member, prefix: str) -> list[bytes]:
    """Return what every rank stored under `prefix`, in rank order; an error names the ranks that stored nothing."""
    deadline = time.monotonic() + member.timeout.total_seconds()
    values: list[bytes] = []
    for rank in range(member.size):
        try:
            left = timedelta(seconds=max(deadline - time.monotonic(), 0.01))
            member.store.wait([f"{prefix}/{rank}"], left)
        except RuntimeError as error:  # torch's store errors, including timeouts
            missing = [r for r in range(rank, member.size) if not member.store.check([f"{prefix}/{r}"])]
            raise PeerLost(
                f"{member.what}: rank {', '.join(map(str, missing or [rank]))} did not appear within {member.timeout}: "
                f"check that all {member.size} ranks were started, with the same store or file ({error})"
            ) from error
        values.append(member.store.get(f"{prefix}/{rank}"))
    return values


def exchange_identities(member: Member, prefix: str) -> list[Identity]:
    """Do steps 1 and 2: return the identities of all ranks; raise if they cannot share memory."""
    member.store.set(f"{prefix}/who/{member.rank}", Identity.mine(member.rank).dumps())
    ranks = [Identity.loads(text) for text in gather(member, f"{prefix}/who")]
    reason = why_not_shared(ranks)
    if reason is not None:
        raise BadInput(f"{member.what}: {reason}")
    return ranks


def _create_segment(member: Member, prefix: str, size: int, fill: Callable[[mmap.mmap], None]) -> tuple[int, mmap.mmap]:
    """Do step 3, on rank 0."""
    try:
        descriptor = segment.create(size, member.what)
        memory = segment.map_memory(descriptor, size, member.what)
    except BadInput as error:
        member.store.set(f"{prefix}/segment", json.dumps({"error": str(error)}))
        raise
    token = secrets.token_hex(TOKEN_BYTES // 2)
    memory[:TOKEN_BYTES] = token.encode()
    fill(memory)
    member.store.set(f"{prefix}/segment", json.dumps({"descriptor": descriptor, "token": token}))
    return descriptor, memory


def _open_segment(member: Member, prefix: str, size: int, first: Identity) -> mmap.mmap:
    """Do step 4, on the other ranks."""
    member.store.wait([f"{prefix}/segment"], member.timeout)
    offer = json.loads(member.store.get(f"{prefix}/segment"))
    if "error" in offer:
        raise BadInput(f"{offer['error']} (reported by rank {first.rank})")
    path = f"/proc/{first.pid}/fd/{offer['descriptor']}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise BadInput(f"{member.what}: rank {member.rank}: {error.strerror}; {segment.limit_of(error)}") from error
        raise BadInput(
            f"{member.what}: rank {member.rank} cannot open the memory of rank {first.rank} ({path}: {error}): "
            f'/proc must be mounted and show the processes of this user; else use backend "gloo"'
        ) from error
    try:
        memory = segment.map_memory(descriptor, size, member.what)
    finally:
        os.close(descriptor)
    if memory[:TOKEN_BYTES] != offer["token"].encode():
        raise BadInput(
            f"{member.what}: {path} on rank {member.rank} is not the memory that rank {first.rank} created: "
            f'the two ranks see different processes under this number; use backend "gloo"'
        )
    return memory


def share_segment(
    member: Member, prefix: str, ranks: list[Identity], size: int, fill: Callable[[mmap.mmap], None]
) -> mmap.mmap:
    """Do steps 3 to 6: map one segment of `size` bytes in all ranks; rank 0 runs `fill` on it first."""
    descriptor = -1
    outcome = _OK
    try:
        if member.rank == 0:
            descriptor, memory = _create_segment(member, prefix, size, fill)
        else:
            memory = _open_segment(member, prefix, size, ranks[0])
    except Exception as error:
        outcome = str(error)
        raise
    finally:
        member.store.set(f"{prefix}/mapped/{member.rank}", outcome)
    try:
        outcomes = [text.decode() for text in gather(member, f"{prefix}/mapped")]
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    for text in outcomes:
        if text != _OK:
            raise BadInput(text)
    return memory
