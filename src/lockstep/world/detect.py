"""Who started this process: a pure function of its environment, by complete sets of variables only.

    lockstep spawn -> torchrun -> by hand -> Open MPI -> MPICH -> MVAPICH2 -> jsrun -> Slurm -> inline
       our own       runs inside   RANK etc.       each by rank *and* size            a real step only
       children      srun steps

The first complete set is used. Variables of two sets are never combined: RANK from a shell profile and a size from
Slurm would describe a world that nobody started. An incomplete set is an error that names what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from lockstep.errors import BadInput
from lockstep.world.place import Place

Env = Mapping[str, str]
MOST_NODES = 2**16
"""Of a job: more than any cluster has."""


def detect(env: Env) -> Place:
    """Return this process's place; `inline` if no launcher set its variables."""
    for reader in _READERS:
        place = reader(env)
        if place is not None:
            return place
    return Place(launcher="inline")


def given_rank(env: Env) -> int:
    """Return the rank that whoever started this process gave it, 0 if nobody did; for a peer, which joins by itself."""
    return next((_number(env, name) for name in ("RANK", "LOCAL_RANK") if name in env), 0)


def conflicts(env: Env) -> list[str]:
    """Return one sentence for each complete set that contradicts the one that is used."""
    places = [place for reader in _READERS if (place := reader(env)) is not None]
    if len(places) < 2:
        return []
    winner, others = places[0], places[1:]
    return [
        f"{other.launcher} also says rank {other.rank} of {other.size} ({', '.join(other.evidence)}); "
        f"{winner.launcher} has priority and is used"
        for other in others
        if (other.rank, other.size) != (winner.rank, winner.size)
    ]


def _spawn(env: Env) -> Place | None:
    if env.get("LOCKSTEP_LAUNCHER") != "spawn":
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local_rank, local_size = _numbers(env, names, whose="`lockstep run --launcher spawn`")
    return Place(
        launcher="spawn",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        rendezvous=env.get("LOCKSTEP_RENDEZVOUS"),
        evidence=("LOCKSTEP_LAUNCHER", *names, "LOCKSTEP_RENDEZVOUS"),
    )


def _torchrun(env: Env) -> Place | None:
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    rank, size, local_rank, local_size, node, nodes = _numbers(env, names, whose="torchrun")
    return Place(
        launcher="torchrun",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node=node,
        nodes=nodes,
        head=env.get("MASTER_ADDR"),
        port=_number(env, "MASTER_PORT") if "MASTER_PORT" in env else None,
        job=env["TORCHELASTIC_RUN_ID"],
        rendezvous="env://",
        evidence=("TORCHELASTIC_RUN_ID", *names, "MASTER_ADDR", "MASTER_PORT"),
    )


def _manual(env: Env) -> Place | None:
    """Read RANK and WORLD_SIZE with the address of rank 0, as in torch's own env:// method."""
    pair = [name for name in ("RANK", "WORLD_SIZE") if name in env]
    if not pair:
        return None
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in env]
    if missing:
        raise BadInput(
            f"{' and '.join(pair)} {'is' if len(pair) == 1 else 'are'} set, but not {', '.join(missing)}. "
            f"To start ranks by hand set all of {', '.join(names)}; otherwise unset {', '.join(pair)}"
        )
    rank, size = _numbers(env, ("RANK", "WORLD_SIZE"), whose="the shell")
    local = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name in env]
    local_size = _number(env, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in env else size
    if not local_size:
        raise BadInput("found a WORLD_SIZE or LOCAL_WORLD_SIZE of 0, expected a number of ranks: correct or unset it")
    local_rank = _number(env, "LOCAL_RANK") if "LOCAL_RANK" in env else rank % local_size
    return Place(
        launcher=env.get("LOCKSTEP_LAUNCHER", "manual"),
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        node=rank // local_size,
        nodes=-(-size // local_size),
        head=env["MASTER_ADDR"],
        port=_number(env, "MASTER_PORT"),
        hosts_known=False,
        evidence=(*names, *local),
    )


def _mpi(
    launcher: str, rank_size: tuple[str, str], local: tuple[str, str], job: tuple[str, ...]
) -> Callable[[Env], Place | None]:
    """Return a reader for one MPI: each sets rank and size, local rank and local size."""

    def read(env: Env) -> Place | None:
        if not any(name in env for name in rank_size):
            return None
        if "SLURM_STEP_ID" in env and not any(name in env for name in local):
            return None  # `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE too, but Slurm's own set says more
        names = (*rank_size, *local)
        rank, size, local_rank, local_size = _numbers(env, names, whose=launcher)
        if not local_size:
            raise BadInput(
                f"found {local[1]}=0, expected the number of ranks on this host: start with {launcher} again"
            )
        return Place(
            launcher=launcher,
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            node=0 if local_size == size else rank // local_size,
            nodes=-(-size // local_size),
            hosts_known=local_size == size,
            head=env.get("MASTER_ADDR"),
            port=_number(env, "MASTER_PORT") if "MASTER_PORT" in env else None,
            job="-".join(env[name] for name in job if name in env) or None,
            # A file of the starter's host cannot be a rendezvous for several hosts.
            rendezvous=env.get("LOCKSTEP_RENDEZVOUS") if local_size == size else None,
            evidence=names,
        )

    return read


def _slurm(env: Env) -> Place | None:
    step = env.get("SLURM_STEP_ID")
    if step is None or not is_number(step) or int(step) >= 2**31:
        return _allocation_without_step(env)
    names = (
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES",
    )
    if any(name not in env for name in names) and "SLURM_PROCID" not in env:
        return None
    rank, size, local_rank, node, nodes = _numbers(env, names, whose="srun")
    per_node = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if len(per_node) <= node:
        raise BadInput(
            f"SLURM_STEP_TASKS_PER_NODE={env.get('SLURM_STEP_TASKS_PER_NODE', '')!r} has no entry for node {node}: "
            "start through srun, which sets it"
        )
    hosts = node_names(env.get("SLURM_STEP_NODELIST", ""))
    return Place(
        launcher="srun",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=per_node[node],
        node=node,
        nodes=nodes,
        head=env.get("MASTER_ADDR") or (hosts[0] if hosts else None),
        port=_number(env, "MASTER_PORT") if "MASTER_PORT" in env else None,
        job=_slurm_job(env),
        evidence=("SLURM_STEP_ID", *names, "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"),
    )


def _slurm_job(env: Env) -> str:
    """Return a unique name for a step: job numbers repeat between clusters, the host and port of srun do not."""
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT")
    return "-".join(env.get(name, "") for name in names)


def _allocation_without_step(env: Env) -> Place | None:
    """Raise inside sbatch or salloc without srun: Slurm has set a number of tasks, but has started only one."""
    tasks = env.get("SLURM_NTASKS", "1")
    if "SLURM_JOB_ID" in env and "SLURM_PROCID" in env and is_number(tasks) and int(tasks) > 1:
        raise BadInput(
            f"this is a Slurm job of {tasks} tasks (SLURM_NTASKS), but no srun step: one process runs and would "
            f"wait for {int(tasks) - 1} others that nobody started. Put srun before the command, or use "
            "`lockstep run --launcher srun`, or --launcher spawn for workers on this node only"
        )
    return None


_READERS: tuple[Callable[[Env], Place | None], ...] = (
    _spawn,
    _torchrun,
    _manual,
    _mpi(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMIX_NAMESPACE",),
    ),
    _mpi(
        "mpich",
        ("PMI_RANK", "PMI_SIZE"),
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        (),  # Hydra gives the job no name
    ),
    _mpi(
        "mvapich2",
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_JOBID",),
    ),
    _mpi(
        "jsrun",
        ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        ("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
        ("LSB_JOBID",),
    ),
    _slurm,
)


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's `2(x3),1` to [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        if match is None or len(counts) + int(match[2] or 1) > MOST_NODES:
            raise BadInput(f"found SLURM_STEP_TASKS_PER_NODE={text!r}, expected the form '2(x3),1': start through srun")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def node_names(text: str) -> list[str]:
    """Expand Slurm's `a[01-03,7],b2` to host names, without scontrol, which may be missing."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        names += _expand(part)
    return names


def _expand(pattern: str, most: int = MOST_NODES) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    names: list[str] = []
    for piece in match[1].split(","):
        low, _, high = piece.partition("-")
        last = high or low
        if not (is_number(low) and is_number(last)) or int(last) - int(low) >= MOST_NODES:
            raise BadInput(
                f"cannot read the Slurm node list {pattern!r:.200}, expected the form 'a[01-03,7]': set MASTER_ADDR"
            )
        for number in range(int(low), int(last) + 1):
            names += _expand(f"{head}{number:0{len(low)}d}{tail}", most - len(names))
            if len(names) > most:
                raise BadInput(
                    f"the Slurm node list {pattern!r:.200} has more than {MOST_NODES} nodes: set MASTER_ADDR"
                )
    return names


def _numbers(env: Env, names: tuple[str, ...], *, whose: str) -> list[int]:
    missing = [name for name in names if name not in env]
    if missing:
        present = [name for name in names if name in env]
        raise BadInput(
            f"{', '.join(present)} {'is' if len(present) == 1 else 'are'} set as by {whose}, "
            f"but {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not: "
            f"start with {whose}, which sets all of them, or unset {', '.join(present)}"
        )
    return [_number(env, name) for name in names]


def _number(env: Env, name: str) -> int:
    text = env[name]
    if not is_number(text.strip()):
        raise BadInput(f"found {name}={text!r:.200}, expected a whole number: correct or unset it")
    return int(text)


def is_number(text: str) -> bool:
    """Say whether a text is a whole number as launchers write one; Unicode has other digits, and Python has limits."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None
