"""Runs a user's own TensorFlow script as a rank: `lockstep launch --framework tensorflow script.py`.

    python -m lockstep.tensorflow.script_rank PARAMETER_SERVERS script.py its own arguments
    python -m lockstep.tensorflow.script_rank PARAMETER_SERVERS -m module its own arguments

The script finds TF_CONFIG set, as under any cluster manager, and need not know of Lockstep.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from lockstep.errors import LockstepError

MODULE = "lockstep.tensorflow.script_rank"


def main(arguments: list[str]) -> None:
    """Join, run the program, and tell the other ranks how it ended."""
    from lockstep.tensorflow.joining import join

    servers, *program = arguments
    try:
        world = join(parameter_servers=int(servers))
    except LockstepError as error:
        sys.stderr.write(f"lockstep: {error}\n")
        sys.exit(error.exit_code)
    with world:
        if program[0] == "-m":
            sys.argv = program[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = program
            sys.path.insert(0, str(Path(program[0]).resolve().parent))
            runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109 - as Python writes it
        sys.path.pop(0)  # `python -m` looks in the present folder first, `python script.py` does not
    main(sys.argv[1:])
