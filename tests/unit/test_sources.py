"""Rules that the source keeps: who reads a rank's variables, and which names messages may name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lockstep.registry import PEERS, STRATEGIES

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"
OF_A_RANK = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
    r"|(?!SLURM_(JOB_ID|CONF)$)(SLURM|OMPI|PMI|PMIX|MPI|MV2|JSM|TORCHELASTIC)_[A-Z_]+$|LOCKSTEP_(LAUNCHER|RENDEZVOUS)$"
)
READERS = ("world", "launch")


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def strings(path: Path) -> Iterator[str]:
    """Yield every string of a file's code; docstrings are strings that nothing uses."""
    tree = ast.parse(path.read_text())
    unused = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unused:
            yield node.value


def test_only_world_and_launch_know_the_variables_of_a_rank() -> None:
    knowing = {path.relative_to(SOURCE) for path in files() if any(OF_A_RANK.match(text) for text in strings(path))}
    assert {path.parts[0] for path in knowing} == set(READERS), sorted(map(str, knowing))


def test_messages_name_strategies_that_exist() -> None:
    """After the word `strategy`, and in names like torch-ddp."""
    known = {*STRATEGIES.names(), *PEERS.names()}
    for path in files():
        for text in strings(path):
            named = re.findall(r"\bstrategy ([a-z]+(?:-[a-z]+)*)\b(?= *[,:;)]|$)", text)
            named += re.findall(r"(?<![\w-])torch-(?:d|fs|pipe)[a-z]+", text)
            assert known.issuperset(named), f"{path}: {text}"
