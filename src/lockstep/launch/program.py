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


def program_of(typed: Sequence[str], options: list[str], *, module: bool) -> tuple[str, ...]:
    """Return a program as Python's own arguments; `typed` is what comes after launch's own `options`.

    A `--` right after the script only says that the rest is the script's own, which it is anyway.
    """
    if not typed:
        raise BadInput("launch needs a script to start, or a module: lockstep launch --workers 2 train.py")
    name, *own = typed
    own = own[1:] if own[:1] == ["--"] else own
    if name.startswith("-"):
        raise BadInput(_unknown_option(name, options))
    if module:
        _check_module(name)
        return ("-m", name, *own)
    if not Path(name).is_file():
        problem = "is a folder, expected a Python file" if Path(name).is_dir() else "does not exist"
        raise BadInput(f"the script {name} {problem}: check its path, or use -m for a module")
    return (name, *own)


def misplaced(program: Sequence[str], options: list[str]) -> str:
    """Return a note if options that launch has too come after the script; empty if none do."""
    own = [part.partition("=")[0] for part in program[2 if program[0] == "-m" else 1 :]]
    both = [name for name in own if name in options and name.startswith("--") and name != "--help"]
    if not both:
        return ""
    return f"{both[0]} comes after the script and goes to the script; for launch's own, type it before the script"


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
