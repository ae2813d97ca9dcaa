"""`lockstep launch`: start any Python script on several workers."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from lockstep.cli_options import Launcher, LauncherArgs, Nodes, Threads
from lockstep.errors import BadInput

SCRIPT_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""What comes after the script is the script's own, also an option that launch has too (a stock script's --workers)."""


class Framework(StrEnum):
    """What a script is written for."""

    torch = "torch"
    tensorflow = "tensorflow"


def launch(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="Any Python script; what comes after it are its own options.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="It is a module, as in python -m.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="How many processes.")] = 1,
    launcher: Launcher = "spawn",
    threads: Threads = None,
    nodes: Nodes = None,
    launcher_args: LauncherArgs = "",
    framework: Annotated[
        Framework, typer.Option(help="tensorflow: in its own environment, with TF_CONFIG set for the script.")
    ] = Framework.torch,
    parameter_servers: Annotated[
        int, typer.Option(min=0, help="tensorflow: how many of the workers are parameter servers.")
    ] = 0,
) -> None:
    """Start any Python script on several workers, also one that uses stock torch.distributed, or TensorFlow."""
    from lockstep.launch.program import misplaced, program_of
    from lockstep.launch.script import Program, launch_script
    from lockstep.launch.start import LauncherOptions

    typed = ([script] if script is not None else []) + context.args
    options = [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]
    script_and_arguments = program_of(typed, options, module=module)
    if note := misplaced(script_and_arguments, options):
        typer.echo(f"lockstep: {note}", err=True)
    if framework is Framework.tensorflow:
        from lockstep.tensorflow.launching import tensorflow_program

        program = tensorflow_program(script_and_arguments, workers, launcher, parameter_servers)
    elif parameter_servers:
        raise BadInput("--parameter-servers is for TensorFlow: give --framework tensorflow too")
    else:
        program = Program(script=script_and_arguments)
    launcher_options = LauncherOptions(nodes=nodes, extra=tuple(shlex.split(launcher_args)))
    launch_script(program, workers, launcher, threads, launcher_options)
