"""A real Slurm of two nodes on one machine, in one private folder."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

if TYPE_CHECKING:
    from types import TracebackType

NODES = ("n1", "n2")
PARTITION = "ml"

# Debian puts daemons where only root looks.
SEARCH_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

_CONF = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU={memory_per_cpu}
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait={kill_wait}
# The nodes are as large as written here, whatever the machine has.
SlurmdParameters=config_overrides
{nodes}
PartitionName={partition} Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class SlurmError(RuntimeError):
    """The cluster did not come up; the message ends with the daemons' last words."""


class SlurmCluster:
    """Two Slurm nodes, their controller and their own munge, all private to one temporary folder.

        munged <-- credentials -- slurmctld <-- registers -- slurmd -N n1, slurmd -N n2
                                                                |
                                                     slurmstepd (one per step) --> tasks

    The daemons stay in the foreground as children of this process, and die with it. `stop` may be called
    at any time and any number of times.
    """

    def __init__(self, *, cpus: int = 2, memory_mib: int = 4096, kill_wait: int = 5) -> None:
        self.cpus = cpus
        self.memory_mib = memory_mib
        self.kill_wait = kill_wait
        self._folder: Path | None = None
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def folder(self) -> Path:
        """The folder with configuration, state, spool and logs."""
        if self._folder is None:
            raise SlurmError("the cluster is not running: call start() first")
        return self._folder

    @property
    def env(self) -> dict[str, str]:
        """The variables that make srun, sbatch and the others talk to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self, *, deadline: float = 60.0) -> Self:
        """Start the daemons and return when both nodes are idle."""
        if self._folder is not None:
            raise SlurmError("the cluster is running already")
        self._folder = Path(tempfile.mkdtemp(prefix="lockstep-slurm-"))
        until = time.monotonic() + deadline
        try:
            self._write_files()
            self._start_daemon(
                "munged",
                "--foreground",
                "--force",  # a temporary folder is not as guarded as munge would have it
                f"--key-file={self.folder}/munge.key",
                f"--socket={self.folder}/munge.socket",
                f"--pid-file={self.folder}/munged.pid",
                f"--seed-file={self.folder}/munged.seed",
            )
            self._wait_for_munge(until)
            self._start_daemon("slurmctld", "-D")
            for node in NODES:
                self._start_daemon("slurmd", "-D", "-N", node)
            self._wait_for_nodes(until)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process of the cluster, its tasks included, and remove the folder."""
        if self._folder is None:
            return
        # The daemons first, so that nothing new starts; then what they had started.
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        while left := self.processes():
            _end(left)
        shutil.rmtree(self._folder)
        self._daemons.clear()
        self._folder = None

    def processes(self) -> list[psutil.Process]:
        """Every live process of this cluster: the daemons, the step daemons and the tasks."""
        return processes_of(self.folder)

    def run(self, *command: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command against this cluster and capture what it prints."""
        return subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=timeout, check=False
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _environment(self) -> dict[str, str]:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        return outside | self.env | {"PATH": SEARCH_PATH}

    def _write_files(self) -> None:
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        controller, *ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().split(".")[0]
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={self.cpus} RealMemory={self.memory_mib} State=UNKNOWN"
            for node, port in zip(NODES, ports, strict=True)
        ]
        text = _CONF.format(
            host=host,
            controller_port=controller,
            user=getpass.getuser(),
            folder=self.folder,
            memory_per_cpu=self.memory_mib // self.cpus,
            kill_wait=self.kill_wait,
            nodes="\n".join(nodes),
            partition=PARTITION,
            names=",".join(NODES),
        )
        (self.folder / "slurm.conf").write_text(text)

    def _start_daemon(self, program: str, *arguments: str) -> None:
        with open(self.folder / f"{program}.out", "ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    # The daemon gets SIGTERM when this process dies without a chance to call stop().
                    ["setpriv", "--pdeathsig", "TERM", program, *arguments],
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def _wait_for_munge(self, until: float) -> None:
        while True:
            # The time first: on a busy machine all may be up at the first look, also after the deadline.
            self._check(until, "munged has not opened its socket")
            if (self.folder / "munge.socket").exists():
                return
            time.sleep(0.02)

    def _wait_for_nodes(self, until: float) -> None:
        idle = sorted(f"{node} idle" for node in NODES)
        while True:
            seen = self.run("sinfo", "--noheader", "--Node", "--format=%N %T")
            if sorted(line.strip() for line in seen.stdout.splitlines()) == idle:
                return
            self._check(until, f"expected {idle}, sinfo says {(seen.stdout + seen.stderr).split()}")
            time.sleep(0.1)

    def _check(self, until: float, problem: str) -> None:
        for daemon in self._daemons:
            if daemon.poll() is not None:
                raise SlurmError(f"{daemon.args!r} ended with {daemon.returncode}\n{self._last_words()}")
        if time.monotonic() > until:
            raise SlurmError(f"not up in time: {problem}\n{self._last_words()}")

    def _last_words(self, lines: int = 15) -> str:
        logs = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        tails = {log.name: log.read_text(errors="replace").splitlines()[-lines:] for log in logs}
        return "\n".join(f"--- {name}\n" + "\n".join(tail) for name, tail in tails.items())


def processes_of(folder: Path) -> list[psutil.Process]:
    """Find the processes that a cluster in `folder` started, directly or not, wherever they hang now."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _belongs(process, folder):
            found |= {member.pid: member for member in (process, *_descendants(process))}
    return list(found.values())


def _belongs(process: psutil.Process, folder: Path) -> bool:
    # Daemons, tasks and commands have SLURM_CONF in their environment. A step's daemon is nobody's child and
    # overwrites its environment with its title, but keeps its node's log open, even once that is deleted.
    try:
        if process.environ().get("SLURM_CONF") == str(folder / "slurm.conf"):
            return True
        if not process.name().startswith("slurm"):
            return False
        descriptors = Path(f"/proc/{process.pid}/fd")
        return any(folder in descriptor.readlink().parents for descriptor in descriptors.iterdir())
    except (psutil.Error, OSError):  # gone meanwhile, or another user's
        return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=5)


def _free_ports(count: int) -> list[int]:
    # Below the range from which the kernel gives ports to clients: nobody gets one of these by chance
    # between this check and the daemon's own bind.
    found: list[int] = []
    for port in random.sample(range(20000, 32000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise SlurmError(f"fewer than {count} free ports between 20000 and 32000")
