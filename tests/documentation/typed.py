"""What a line that a page says to type becomes in a test: the same command in its quick form."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ELSEWHERE = {
    "make": "a target of the Makefile",
    "pip": "this package, or one that it depends on",
    "git": "nothing of ours",
    "python3": "the environment of the tests",
    "source": "the environment of the tests",
    "module": "a cluster's own",
    "docker": "tests/unit/test_containers.py, scripts/soak-container",
    "apptainer": "tests/unit/test_containers.py, scripts/soak-container",
    "srun": "tests/contract/test_launchers.py, on a real Slurm",
    "sbatch": "tests/system, on a real Slurm",
    "mpirun": "tests/contract/test_launchers.py, with both MPIs",
    "jupyter": "the notebook's tests",
    "tensorboard": "tests/multiprocess/test_followers.py",
    "ulimit": "the shell's own",
    "scripts/figures": "tests/unit/test_figures.py",
    "scripts/schema-tables": "tests/unit/test_docs.py",
    "scripts/soak-fuzz": "tests/fuzz",
}
"""Programs that a page may name and that are not typed here, with who holds them."""


@dataclass(frozen=True)
class Typed:
    """One line, ready to be run."""

    program: str
    """`lockstep`, `python`, `torchrun`, or one of ELSEWHERE."""
    arguments: tuple[str, ...]
    """In quick form."""
    original: str
    """As the page has it."""


def lines_of(text: str) -> list[str]:
    """Return the commands of a block: comments left out, lines that go on joined, prompts taken off."""
    whole = text.replace("\\\n", " ")
    made = [line.partition(" #")[0].strip().removeprefix("$ ") for line in whole.splitlines()]
    return [line for line in made if line and not line.startswith("#")]


def typed(line: str, folder: Path, newest: Callable[[], str], resumed: int) -> Typed:
    """Return a line in its quick form; a run that is not there is the newest one of the folder."""
    words = [word for word in shlex.split(line) if word != "&"]
    while "=" in words[0] and words[0].partition("=")[0].isupper():
        words = words[1:]
    program, arguments = words[0], words[1:]
    if program == "lockstep" and arguments:
        arguments = _quick(_with_runs(arguments, folder, newest), resumed)
    return Typed(program, tuple(arguments), line)


def _with_runs(arguments: list[str], folder: Path, newest: Callable[[], str]) -> list[str]:
    """Put a run that is there in the place of one that is not."""
    made = arguments[:1]
    for before, word in pairwise(arguments):
        reads = before == "--resume" or arguments[0] == "report" or (arguments[0] == "export" and len(made) == 1)
        stands_for_a_run = reads and not word.startswith("-") and before != "--out" and not (folder / word).exists()
        made.append(newest() if stands_for_a_run else word)
    return made


TAKES_ONE = ("--steps", "--epochs", "--repeats", "--time-limit", "--checkpoint-every", "--eval-every", "--patience")
MOST_WORKERS = 2
MOST_WAYS, MOST_LANES = 3, 2
"""Of a comparison: tests/multiprocess/test_compare.py and test_stock.py have all ways side by side."""
OTHER_TRAINERS = ("lightning", "accelerate", "tensorflow")
"""tests/multiprocess/test_peers.py trains with them."""


def _quick(arguments: list[str], resumed: int) -> list[str]:
    """Two steps, one repeat, checkpoints and evaluations at each step; a resumed run goes one step further."""
    command = arguments[0]
    if command not in ("run", "compare") or "--show-schedule" in arguments or "--help" in arguments:
        return arguments
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in TAKES_ONE:
            next(words)
            often = {"--checkpoint-every": ["1"], "--eval-every": ["1"], "--patience": ["9"]}.get(word)
            kept += [word, *often] if often else []
        elif word == "--strategies":
            names = [name for name in next(words).split(",") if name not in OTHER_TRAINERS]
            kept += [word, ",".join(names[:MOST_WAYS])]
        elif word == "--lanes":
            kept += [word, ",".join(next(words).split(",")[:MOST_LANES])]
        elif word == "--workers":
            counts = sorted({min(int(count), MOST_WORKERS) for count in next(words).split(",")})
            kept += [word, ",".join(map(str, counts))]
        elif word != "--peers":
            kept.append(word)
    if command == "compare":
        kept += ["--repeats", "1"] + ([] if "--strategies" in kept else ["--strategies", "single,ddp"])
    if command == "run" and "--strategy" in kept and kept[kept.index("--strategy") + 1] in OTHER_TRAINERS:
        kept[kept.index("--strategy") + 1] = "ddp"
    return [*kept, "--steps", str(resumed if "--resume" in kept else 2)]
