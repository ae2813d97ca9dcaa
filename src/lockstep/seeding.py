"""Seeds that depend on the purpose of random numbers, never on the rank that draws them."""

import hashlib
import struct


def derive(purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for a purpose and its coordinates, e.g. `derive("lane", seed, step, lane)`."""
    words = hashlib.blake2b(digest_size=8, person=purpose.encode()[:16])
    words.update(struct.pack(f"<{len(numbers)}q", *numbers))
    return int.from_bytes(words.digest(), "little") >> 1
