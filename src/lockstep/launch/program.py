"""What `lockstep launch` starts: a script or a module with its own options, and what to type in place of torchrun's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import BadInput, nearest

IN_PLACE_OF = {
    "--nproc-per-node": "--workers N, the number of processes in all",
    "--nnodes": "--launcher srun --nodes N",
    "--standalone": "nothing: one machine is the default",
    "--node-rank": "nothing: srun and mpirun number the hosts",
    "--master-addr": "nothing: the launcher finds rank 0",
    "--master-port": "nothing: the launcher finds a free port",
    "--rdzv-backend": "nothing: the launcher finds rank 0",
    "--rdzv-endpoint": "nothing: the launcher finds rank 0",
    "--rdzv-id": "nothing: the launcher finds rank 0",
    "--max-restarts": "nothing: a rank that fails ends all",
}
"""What to type in place of torchrun's options."""


def program_of(module: str | None, typed: Sequence[str], options: list[str]) -> tuple[str, ...]:
    """Return a program as Python's own arguments; `typed` is all that is no option of launch, `options` are those."""
    if module is not None:
        _check_module(module)
        return ("-m", module, *typed)
    if not typed:
        raise BadInput("launch needs a script to start, or a module: lockstep launch --workers 2 train.py")
    if typed[0].startswith("-"):
        raise BadInput(_unknown_option(typed[0], options))
    if not Path(typed[0]).is_file():
        problem = "is a folder, expected a Python file" if Path(typed[0]).is_dir() else "does not exist"
        raise BadInput(f"the script {typed[0]} {problem}: check its path, or use -m for a module")
    return tuple(typed)


def shown_name(program: Sequence[str]) -> str:
    """Return what a person calls the program: the script, or `-m` and the module."""
    return " ".join(program[:2]) if program[0] == "-m" else program[0]


def _unknown_option(typed: str, options: list[str]) -> str:
    name = typed.partition("=")[0]
    if (instead := IN_PLACE_OF.get(name.replace("_", "-"))) is not None:
        return f"launch has no option {name} (torchrun's): type {instead}"
    return (
        f"launch has no option {name}{nearest(name, options)}. The script's own options come after the script: "
        "lockstep launch --workers 2 train.py --lr 0.1"
    )


def _check_module(module: str) -> None:
    """Refuse a module whose first package is nowhere; what is inside a package only importing it would tell."""
    first = module.partition(".")[0]
    sys.path.insert(0, "")  # where `python -m` looks first
    try:
        known = bool(first) and importlib.util.find_spec(first) is not None
    except (ImportError, ValueError):
        known = False
    finally:
        sys.path.remove("")
    if not known:
        raise BadInput(
            f"there is no module {module}: check its name, and type the command in the folder that contains {first}"
        )
