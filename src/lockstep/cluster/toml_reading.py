"""TOML files from anywhere: regular files of bounded size, typed, and refused on one line that names line and field."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lockstep.errors import BadInput, nearest, printable
from lockstep.train.records import read_bytes
from lockstep.train.schema.refusal import FIELD, validation_words

MOST_BYTES = 64 << 10
"""A larger file is no profile."""
MOST_DEPTH = 16
"""Tables and lists inside each other."""
MOST_DOTS = 200
"""In one line: tomllib takes the square of a dotted key's parts."""
AGAIN = "Correct it, or leave it out"
Type = TypeVar("Type")
Key = str | int
"""A name, or the place in a list of tables, from 0."""


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a file; a key that it does not have is refused."""


@dataclass(frozen=True)
class TomlText:
    """A file that was parsed: its tree, and its lines, to say where something stands."""

    path: Path
    lines: list[str]
    tree: dict[str, Any]

    def convert(self, kind: type[Type]) -> Type:
        """Return the tree as a value of this type, or refuse it with the line of the first thing that does not fit."""
        try:
            return msgspec.convert(self.tree, kind)
        except msgspec.ValidationError:
            keys, message = self._first_wrong(self.tree, kind, [])
            raise self.refusal(keys, message) from None
        except (ValueError, RecursionError, OverflowError) as error:
            raise BadInput(f"{self.path} cannot be used ({type(error).__name__}). {AGAIN}") from None

    def refusal(self, keys: Sequence[Key], what: str) -> BadInput:
        """Return the refusal of what stands under these keys."""
        shown = "".join(letter if letter.isprintable() else " " for letter in what)
        return BadInput(f"{self.path}, line {line_of(self.lines, keys)}: {shown}. {AGAIN}")

    def _first_wrong(self, tree: Any, kind: Any, keys: list[Key]) -> tuple[list[Key], str]:
        """Return where a tree does not fit, and why: tables are tried one by one, because msgspec tells no names."""
        if isinstance(tree, dict):
            for name, inner in inner_types(kind):
                tables = tree.get(name)
                if not isinstance(tables, dict):
                    continue
                for key, table in tables.items():
                    if not fits(table, inner):
                        return self._first_wrong(table, inner, [*keys, name, key])
        try:
            msgspec.convert(tree, kind)
        except msgspec.ValidationError as error:
            return self._words(str(error), tree, kind, keys)
        return keys, "it does not fit"

    def _words(self, message: str, tree: Any, kind: Any, keys: list[Key]) -> tuple[list[Key], str]:
        path = message.rpartition("`$")[2].rstrip("`") if " - at `" in message else ""
        inside: list[Key] = [name or int(place) for name, place in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path)]
        words = validation_words(message, json.dumps(tree, default=str).encode())
        words = words.replace(" unknown to this version", " unknown").replace("other text", "text of another form")
        if (field := FIELD.match(message)) is not None and "unknown" in field["what"]:
            known = list(getattr(kind, "__struct_fields__", ()))
            name = field["name"].partition("`")[0]
            words += nearest(name, known) if known and not inside else ""
            inside.append(name)
        where = ".".join(printable(str(key)) for key in keys)
        return [*keys, *inside], f"{where}: {words}" if keys else words


def inner_types(kind: Any) -> list[tuple[str, Any]]:
    """Return the fields of a struct that hold tables by name, with the type of such a table."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return []
    tables = []
    for field in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(field.type)
        info = info.type if isinstance(info, msgspec.inspect.Metadata) else info
        if isinstance(info, msgspec.inspect.DictType) and isinstance(info.value_type, msgspec.inspect.StructType):
            tables.append((field.name, info.value_type.cls))
    return tables


def fits(tree: Any, kind: Any) -> bool:
    """Say whether a tree is of this type."""
    try:
        msgspec.convert(tree, kind)
    except msgspec.ValidationError:
        return False
    return True


def read_toml(path: Path) -> TomlText:
    """Parse a file; refuse one that is no such file, too large, nested too deeply, or not TOML."""
    if not path.exists() and not path.is_symlink():
        raise BadInput(f"{path} does not exist: check the path")
    data = read_bytes(path, MOST_BYTES, advice=AGAIN)
    try:
        text = data.decode()
        if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
            raise BadInput(f"{path} has a line with more than {MOST_DOTS} dots. {AGAIN}")
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = f", line {place[1]}" if place else ""
        what = printable(str(error).partition(" (at ")[0])
        raise BadInput(f"{path}{line}: it is not TOML ({what}). {AGAIN}") from None
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}, line {number}: it is not UTF-8 text. {AGAIN}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a date that is none
        raise BadInput(f"{path} has a value that cannot be read ({type(error).__name__}). {AGAIN}") from None
    if depth_of(tree) > MOST_DEPTH:
        raise BadInput(f"{path} is nested too deeply. {AGAIN}")
    return TomlText(path, text.splitlines(), tree)


def depth_of(tree: Any) -> int:
    """Return how many tables and lists are inside each other; level by level, because recursion has a limit."""
    depth, level = 0, [tree]
    while level:
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inner for value in values]
        depth += 1
    return depth


def line_of(lines: Sequence[str], keys: Sequence[Key]) -> int:
    """Return the line, from 1, of what stands under these keys: of the key, or of the innermost table around it."""
    table: list[Key] = []
    lists: dict[str, int] = {}
    best, depth = 1, 0
    for number, line in enumerate(lines, start=1):
        if (header := re.match(r"\s*(\[\[?)\s*([^][]+?)\s*\]\]?\s*(#.*)?$", line)) is not None:
            table = _names(header[2])
            if header[1] == "[[":
                place = lists.get(header[2], -1) + 1
                lists[header[2]] = place
                table.append(place)
            here = table
        elif (assigned := re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", line)) is not None:
            here = [*table, *_names(assigned[1])]
        else:
            continue
        if len(here) > depth and here == list(keys[: len(here)]):
            best, depth = number, len(here)
    return best


def _names(text: str) -> list[Key]:
    return [part.strip().strip("\"'") for part in text.split(".")]
