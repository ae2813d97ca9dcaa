"""Files of Ragged."""

from __future__ import annotations

import json
import random
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lockstep.data import Ragged
from tests.fuzz.kind import OneFile
from tests.fuzz.mutators import change_bytes, change_tree


class RaggedFile(OneFile):
    """A Ragged file with every kind of field; what is opened can be read to its end."""

    name = "ragged"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "data.ragged"
        Ragged.write(self.path, [item(number) for number in range(12)])

    def read(self, chance: random.Random) -> None:
        self.change(self.path, chance, partial(forge_ragged, chance=chance), self.use)

    def use(self) -> None:
        """Open it, and read every item and a batch."""
        data = Ragged.open(self.path)
        assert len(data) < 2**20
        for number in range(len(data)):
            data[number]
        if len(data):
            data.gather([0, len(data) - 1], "list")


def item(number: int) -> dict[str, Any]:
    """Return an item of one field of every kind."""
    return {
        "fixed": torch.ones(2, 3),
        "length": torch.ones(number, 3, dtype=torch.bfloat16),
        "shape": torch.ones((2,) * (number % 3), dtype=torch.int64),
        "text": "x" * number,
        "bytes": b"abc",
    }


def forge_ragged(data: bytes, chance: random.Random) -> bytes:
    """Change bytes, tables or the schema of a Ragged file, mostly with checksums that are right again."""
    _, _, _, _, size, at, length, *_ = struct.unpack_from("<8sII16sQQQII32s", data)
    head, body, schema = bytearray(data[:128]), bytearray(data[128:at]), data[at : at + length]
    what = chance.random()
    if what < 0.15:
        return change_bytes(data, chance)
    if what < 0.5:
        place = chance.randrange(max(0, len(body) - 2048), len(body) - 8) // 8 * 8
        struct.pack_into("<q", body, place, chance.choice((0, 1, -1, 2, 7, 2**31, 2**62, -(2**63), 100)))
    elif what < 0.95:
        tree = json.loads(schema)
        for _ in range(chance.choice((1, 1, 2))):
            change_tree(tree, chance)
        schema = json.dumps(tree).encode()
    else:
        struct.pack_into("<Q", head, chance.choice((32, 40, 48)), chance.choice((0, 1, 2**40, 2**63, size + 1)))
    if what < 0.95:
        struct.pack_into("<QQQI", head, 32, 128 + len(body) + len(schema), at, len(schema), zlib.crc32(schema))
    struct.pack_into("<I", head, 96, zlib.crc32(head[:96]))
    return bytes(head) + bytes(body) + schema
