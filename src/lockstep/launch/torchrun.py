"""`torchrun`: torch's own elastic launcher starts the ranks of this machine."""

from __future__ import annotations

import logging
import os
import signal
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from lockstep.launch.base import Job, Launcher, Outcome, threads_for
from lockstep.launch.parent_death import PARENT, die_with_starter
from lockstep.launch.spawn import context, server_number, start_forked
from lockstep.registry import LauncherDescription

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

GRACE_SECONDS = 5.0
LAUNCHER = LauncherDescription(
    name="torchrun",
    help="torch's elastic launcher, on this machine",
    implementation="lockstep.launch.torchrun:Torchrun",
    this_host=True,
)


class Torchrun(Launcher):
    """Ranks of this machine under torch's agent, with its variables and its rendezvous.

    The agent needs torch; it runs in a process of the fork server, so that this process need not import it.
    """

    def start(self, job: Job) -> Outcome:
        """Run the agent and wait for it."""
        reader, writer = context().Pipe(duplex=False)
        agent = context().Process(target=_agent, args=(job, writer, server_number()), name="lockstep torchrun agent")
        start_forked(agent)
        writer.close()
        try:
            exits: dict[int, int] = reader.recv() if reader.poll(None) else {}
        except EOFError:
            exits = {}
        finally:
            reader.close()
            if agent.is_alive():
                agent.join(1.0)
            if agent.is_alive():
                agent.terminate()
                agent.join(GRACE_SECONDS)
            if agent.is_alive():
                agent.kill()  # it waits for a rank that is stopped
            agent.join()
        code = agent.exitcode or 0
        agent.close()
        return Outcome(code if code >= 0 else 1, exits)


def _agent(job: Job, writer: Connection, server: int | None) -> None:
    """Run torch's elastic agent over this job's command; send back the exit codes of ranks that failed."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    # Our ranks end with the agent. A script's do not: on SIGTERM the agent ends them itself.
    die_with_starter(signal.SIGTERM if job.script else signal.SIGKILL, server)
    os.environ.update({**threads_for(job), **job.variables, PARENT: str(os.getpid())})
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # our report is shorter
    command = job.command
    exits: dict[int, int] = {}
    try:
        elastic_launch(_config(job), command[0])(*command[1:])
    except ChildFailedError as error:
        first = error.get_first_failure()[0]
        ranks = sorted(error.failures, key=lambda rank: rank != first)
        exits = {rank: error.failures[rank].exitcode for rank in ranks}
    except SignalException as error:  # the agent has ended its ranks
        os._exit(128 + error.sigval)
    writer.send(exits)
    writer.close()
    os._exit(1 if exits else 0)


def _config(job: Job) -> LaunchConfig:
    import uuid

    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.workers,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # else an empty folder torchelastic_* is left
    )
