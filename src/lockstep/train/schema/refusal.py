"""Refusals in words: which file, line and field, what was found there, and what was expected."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from lockstep.errors import BadInput
from lockstep.train.records import AGAIN
from lockstep.train.schema.scalars import DIGEST, HASH

TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "a list",
}
PATTERNS = {DIGEST: "64 hexadecimal digits", HASH: "16 hexadecimal digits"}
BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
AT = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
FIELD = re.compile(r"(?P<what>Object missing required|Object contains unknown) field `(?P<name>.*)`", re.DOTALL)
EXPECTED = re.compile(
    r"Expected `(?P<types>[^`]*)`(?:"
    r", got `.*`"
    r"|(?P<regex> matching regex '(?P<pattern>.*)')"
    r"| (?P<bound>[<>]=?) (?P<limit>\S+)"
    r"|(?P<length> of (?:at (?P<least>least|most) )?length (?P<sign>[<>]=)? ?(?P<count>\d+).*)"
    r")?",
    re.DOTALL,
)
SHOWN = 60
"""Characters of a value that are shown."""


def refuse(where: str, error: Exception, data: bytes) -> BadInput:
    """Return the refusal of bytes that could not be decoded; `where` names the file, and the line of it."""
    return damaged(where, _told(error, data))


def damaged(where: str, what: str) -> BadInput:
    """Return the refusal of a file for what is wrong in it, on one line."""
    told = "".join(letter if letter.isprintable() else " " for letter in what)
    return BadInput(f"{where}: {told}; the file was damaged or changed. {AGAIN}")


def shown(value: object) -> str:
    """Write a value as JSON does, cut to a length that a line holds."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = "a value"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _told(error: Exception, data: bytes) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, msgspec.ValidationError):
        reason = str(error).removeprefix("JSON is malformed: ")
        return "the JSON is cut short" if "truncated" in reason else f"it is not JSON ({reason})"
    return validation_words(str(error), data)


def validation_words(message: str, data: bytes) -> str:
    """Put a message of msgspec into words: the field by its names, the value found, the value expected."""
    match = AT.fullmatch(message)
    what, key, path = (match["what"], match["key"], match["path"] or "") if match else (message, None, "")
    steps = re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path)
    place = ", ".join(
        name or ("one entry" if number == "..." else f"entry {int(number) + 1}") for name, number in steps
    )
    if (field := FIELD.fullmatch(what)) is not None:
        inside = f"{place}, {field['name']}" if place else field["name"]
        return f"{inside} is {'missing' if 'missing' in field['what'] else 'unknown to this version'}"
    if key is not None:
        return f"a name in {place} is unknown: {what.partition('value ')[2] or what}"
    value = _value(data, steps)
    subject = f"{place or 'the content'} is {value}" if value else f"{place or 'the content'} does not fit"
    return f"{subject}, {expected_words(what)}"


def expected_words(what: str) -> str:
    """Put what msgspec expected into words."""
    match = EXPECTED.fullmatch(what)
    if match is None:
        return "which is out of range" if "out of range" in what else "which is unknown to this version"
    if match["regex"]:
        return f"expected {PATTERNS.get(match['pattern'], 'other text')}"
    names = " or ".join(TYPES.get(name, name) for name in match["types"].split(" | "))
    if match["bound"]:
        names += f" {BOUNDS[match['bound']]} {match['limit']}"
    if match["length"]:
        more = " or more" if match["least"] == "least" or match["sign"] == ">=" else ""
        less = " or fewer" if match["least"] == "most" or match["sign"] == "<=" else ""
        names += f" with {match['count']}{more}{less} entries"
    return f"expected {names}"


def _value(data: bytes, steps: list[tuple[str, str]]) -> str:
    """Return what the data has at a place, as shown; empty if that cannot be told."""
    try:
        value: Any = msgspec.json.decode(data)
        for name, number in steps:
            value = value[name] if name else value[int(number)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return shown(value)
