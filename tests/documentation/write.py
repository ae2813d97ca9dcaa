"""Put what the commands of a page print into its blocks of output: python -m tests.documentation.write PAGE..."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.commands import Done, Marked
from tests.documentation.blocks import Block, blocks
from tests.documentation.following import Follower


class Apart:
    """Commands in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Done:
        return Marked(env).run([str(Path(sys.executable).with_name("lockstep")), *arguments], self.folder, 500)

    apart = __call__


def write(page: Path) -> None:
    """Follow a page and write it anew."""
    outputs: list[tuple[Block, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(Path(folder), Apart(Path(folder)))  # type: ignore[arg-type]
        follower.changed = lambda block, printed: outputs.append((block, printed))
        for block in blocks(page):
            follower.follow(block)
    lines = page.read_text(encoding="utf-8").splitlines()
    for block, printed in reversed(outputs):
        end = next(at for at in range(block.line, len(lines)) if lines[at].strip() == "```")
        lines[block.line : end] = printed.rstrip().splitlines()
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
