"""Changes at random: bytes, values of JSON, and what stands in the place of a file."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

VALUES: list[Any] = [None, True, False, 0, 1, -1, 2, 10**6, 2**53, 2**63, 10**40, 0.0, -0.0, 0.5, -1e-7, 1e-300, 5e-324]
VALUES += [1e300, -1.7e308, 1.7e308, "", "x", "0" * 64, "\n\x00\u202e", "ddp", "done", "failed", [], [[]], {}, {"": {}}]
VALUES += [[None], ["forward", 0.0, 0.0], {"data": 1.0}, {"accuracy": 1e308}, 10_000_000_000, 10**400, "\ud800", "F32"]
VALUES += [{"tuple": [0.9, 0.999]}, {"float": "nan"}, {"dict": [["a", 1]]}, {"tensor": ["float32", [1], "00000000"]}]
BYTES = (b"", b"9" * 5000, b"[" * 50_000, b"NaN", b"\\ud800", b"\n", b"-", b"\xff\xfe", b"1e999")


def change_tree(tree: Any, chance: random.Random) -> None:
    """Change, add or remove one value of decoded JSON, at any depth."""
    while tree:
        key = chance.choice(list(tree) if isinstance(tree, dict) else list(range(len(tree))))
        inner = tree[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
            tree = inner
            continue
        what = chance.random()
        if what < 0.15:
            del tree[key]
        elif what < 0.3 and isinstance(inner, int | float):
            tree[key] = inner * chance.choice((0, -1, 2, 10**9, 1e-9)) if abs(inner) < 1e300 else 0
        elif what < 0.4 and isinstance(tree, list):
            tree.insert(key, inner)
        elif what < 0.45 and isinstance(tree, dict):
            tree["new"] = inner
        else:
            tree[key] = copy.deepcopy(chance.choice(VALUES))  # what is changed next must not be the list itself
        return


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    """Put something in the place of a few bytes, or cut the rest off."""
    at, length = chance.randrange(len(data) + 1), chance.choice((1, 1, 1, 8, 200))
    new = chance.choice((*BYTES, chance.randbytes(1)))
    return data[:at] if chance.random() < 0.1 else data[:at] + new + data[at + length :]


def change_json(data: bytes, chance: random.Random, *, lines: bool = False) -> bytes:
    """Change bytes, or one value of the JSON; `lines` is for a file with a document on each line."""
    if chance.random() < 0.3:
        return change_bytes(data, chance)
    texts = data.splitlines() if lines else [data]
    place = chance.randrange(len(texts))
    tree = json.loads(texts[place])
    change_tree(tree, chance)
    texts[place] = json.dumps(tree, allow_nan=True).encode()
    return b"\n".join(texts) + b"\n" if lines else texts[0]


def replace_file(path: Path, chance: random.Random) -> None:
    """Put something that is no such file in a file's place: a pipe, a device, a folder, a hole."""
    what = chance.choice(("pipe", "zero", "folder", "nowhere", "loop", "hole", "empty", "itself", "terminal"))
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what in ("hole", "empty"):
        path.touch()
        os.truncate(path, 0 if what == "empty" else 2**40)
    else:
        to = {"zero": "/dev/zero", "nowhere": "/no/such/file", "loop": str(path), "terminal": "/dev/tty"}
        path.symlink_to(to.get(what, "/proc/self/mem"))


def restore(path: Path, data: bytes) -> None:
    """Put a file back, whatever stands in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(data)
