"""Whether what a page shows is what a command printed, apart from numbers that differ each time."""

from __future__ import annotations

import re

NUMBER = re.compile(r"[0-9a-f]{8,}|[-+±]?\d[\d.,:]*(?: ?(?:ms|us|µs|s|min|h|MiB|GiB|KiB|B|%|×|x)(?![\w]))?")
HOST = re.compile(r"on \S+ failed\b")
RULE = re.compile(r"[─━-]{3,}")


def masked(line: str) -> str:
    """Return a line without its numbers and the host of a rank, and with single spaces."""
    return " ".join(NUMBER.sub("#", RULE.sub("---", HOST.sub("on HOST failed", line))).split())


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines of a page that were not printed, in this order; `...` stands for any lines left out."""
    real = [masked(line) for line in printed.splitlines()]
    place, lacking = 0, []
    for line in shown.splitlines():
        wanted = masked(line)
        if not wanted or line.strip() == "...":
            continue
        found = next((at for at in range(place, len(real)) if real[at] == wanted), None)
        if found is None:
            lacking.append(line)
        else:
            place = found + 1
    return lacking
