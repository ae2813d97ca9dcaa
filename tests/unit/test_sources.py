"""Rules that the source keeps: who reads a rank's variables, and which names messages may name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.registry import PEERS, STRATEGIES

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"
OF_A_RANK = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
    r"|(SLURM|OMPI|PMI|PMIX|MPI|MV2|JSM|TORCHELASTIC|LOCKSTEP)_[A-Z_]+$"
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


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_world_and_launch_know_the_variables_of_a_rank(path: Path) -> None:
    named = {text for text in strings(path) if OF_A_RANK.match(text)}
    assert not named or path.relative_to(SOURCE).parts[0] in READERS


def test_the_rule_would_find_them() -> None:
    named = {text for folder in READERS for path in (SOURCE / folder).glob("*.py") for text in strings(path)}
    assert {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOCKSTEP_LAUNCHER"} <= {
        text for text in named if OF_A_RANK.match(text)
    }


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_messages_name_strategies_that_exist(path: Path) -> None:
    """After `strategy` or `--strategy`, and in names like torch-ddp."""
    known = {*STRATEGIES.names(), *PEERS.names()}
    for text in strings(path):
        for name in re.findall(r"\b(?:use|or|--)? ?strategy ([a-z]+(?:-[a-z]+)*)\b(?= *[,:;)]|$)", text):
            assert name in known, text
        for name in re.findall(r"(?<![\w-])torch-(?:d|fs|pipe)[a-z]+", text):
            assert name in known, text
