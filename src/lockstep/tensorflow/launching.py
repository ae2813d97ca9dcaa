"""What `lockstep launch --framework tensorflow` starts, checked before any rank is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.launch.script import Program
from lockstep.tensorflow.cluster import check_roles, given_config
from lockstep.tensorflow.environment import find_environment
from lockstep.tensorflow.keras_fit import warning_for
from lockstep.tensorflow.script_rank import MODULE


def tensorflow_program(script: tuple[str, ...], workers: int, launcher: str, parameter_servers: int) -> Program:
    """Return how a script of TensorFlow is run; say so if it calls what does not work on several workers."""
    check_roles(workers, parameter_servers)
    if workers > 1 and given_config(os.environ) is not None:
        raise BadInput(
            f"TF_CONFIG is set here, and all {workers} ranks would get the same: unset it, and every rank gets its own"
        )
    environment = find_environment()
    if launcher == "inline" and Path(environment.python).absolute() != Path(sys.executable).absolute():
        raise BadInput(
            f"launcher inline runs the script in this Python, which has no TensorFlow ({environment.python} has): use "
            "--launcher spawn"
        )
    if workers > 1 and script[0] != "-m" and (warning := warning_for(Path(script[0]), environment.keras, os.environ)):
        print(f"lockstep: {warning}", file=sys.stderr, flush=True)  # noqa: T201
    return Program(script=script, python=environment.python, runner=("-m", MODULE, str(parameter_servers)))
