"""The command line. Nothing here imports torch: `lockstep --help` answers at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from lockstep import process_wide
from lockstep.cli_bench import bench
from lockstep.cli_compare import compare
from lockstep.cli_docs import docs
from lockstep.cli_doctor import doctor, selftest
from lockstep.cli_export import export
from lockstep.cli_fit import fit
from lockstep.cli_help import BEGIN, MORE, PANELS, page_of, panel_of, with_page
from lockstep.cli_init import init
from lockstep.cli_jobs import jobs, stats
from lockstep.cli_launch import SCRIPT_OPTIONS, launch
from lockstep.cli_notebook import notebook
from lockstep.cli_options import ListingCommand
from lockstep.cli_report import report
from lockstep.cli_run import run
from lockstep.cli_runs import clean, runs
from lockstep.cli_sbatch import RUN_OPTIONS, requeue, sbatch
from lockstep.errors import PROCESS_GONE, Interrupted, LockstepError
from lockstep.output import lost_output, output_may_be_lost
from lockstep.version import __version__

if TYPE_CHECKING:
    from types import FrameType


class Commands(TyperGroup):
    """All commands; Ctrl-C ends any of them with one line that says where it stopped.

    click would make a bare `Aborted.` of an EOFError; it is one of multiprocessing, whose process is gone.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the commands in groups."""
        for name, command in self.commands.items():
            command.rich_help_panel = panel_of(name)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, those of a group together."""
        order = [*PANELS, MORE]
        return sorted(self.commands, key=lambda name: order.index(panel_of(name)))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo(f"lockstep: {error if isinstance(error, Interrupted) else 'interrupted'}", err=True)
            raise typer.Exit(Interrupted.exit_code) from None
        except EOFError:
            typer.echo(f"lockstep: {PROCESS_GONE}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="lockstep",
    cls=Commands,
    help="Train one PyTorch model on many workers: one recipe, every way, the same bits, measured.",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command(cls=ListingCommand)(init)
app.add_typer(bench, name="bench")
app.add_typer(notebook, name="notebook")
app.command(cls=ListingCommand)(compare)
app.command(cls=ListingCommand)(fit)
app.command(cls=ListingCommand)(report)
app.command(cls=ListingCommand)(export)
app.command(cls=ListingCommand)(runs)
app.command(cls=ListingCommand)(clean)
app.command(cls=ListingCommand, context_settings=RUN_OPTIONS)(sbatch)
app.command(cls=ListingCommand)(requeue)
app.command(cls=ListingCommand)(jobs)
app.command(cls=ListingCommand)(stats)
app.command(cls=ListingCommand)(run)
app.command(cls=ListingCommand, context_settings=SCRIPT_OPTIONS)(launch)
app.command(cls=ListingCommand)(doctor)
app.command(cls=ListingCommand)(docs)
app.command()(selftest)


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(BEGIN, nl=False)


TRAINING = ("run", "compare", "launch", "bench")
"""Commands whose exit code tells how the training went, even if nobody could be shown it."""


def main() -> NoReturn:
    """Run the command line; every error is one message and an exit code that says whose it was."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup the command outlives its terminal
            signal.signal(number, _terminated)
    with output_may_be_lost() as files:
        code = _run_command()
    if lost := lost_output(files):
        trained = sys.argv[1:2] in [[name] for name in TRAINING]
        code = code or int(not trained)
        advice = "; the run folder has the result" if trained else "; make room, or write elsewhere"
        with contextlib.suppress(OSError):
            os.write(2, f"lockstep: {lost}{advice}\n".encode())
    sys.exit(code)


def _run_command() -> int:
    """Run the command that was typed, and return its exit code."""
    try:
        process_wide.check()
        app(standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except LockstepError as error:
        typer.echo(f"lockstep: {with_page(str(error), page_of(error))}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        typer.echo("lockstep: interrupted", err=True)
        return Interrupted.exit_code
    return 0


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that what was started is ended on the way out


if __name__ == "__main__":
    main()
