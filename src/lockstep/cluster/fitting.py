"""Whether a request fits a site: what does not is refused with the limit and the nearest that fits. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lockstep.cluster.profiles import NodeKind, Partition, Profile
from lockstep.cluster.request import Request, minutes
from lockstep.errors import BadInput, nearest
from lockstep.report.units import plural


def fitted(request: Request, profile: Profile) -> tuple[Request, list[str]]:
    """Return the request with the site's defaults, and warnings of what is unwise; refuse what cannot start.

    Kinds of nodes are narrowed down by GPUs, then CPUs, then memory: what is left has room for all of them together.
    """
    name, partition = profile.partition(request.partition)
    request = _with_defaults(replace(request, partition=name), partition)
    kinds = _of_type(request, profile, partition)
    if request.gpu is None and len({kind.gpu for kind in kinds}) == 1:
        request = replace(request, gpu=kinds[0].gpu)
    kinds = _with_room(kinds, lambda kind: kind.gpus, request.gpus_per_node or 0, lambda most: _gpus(request, most))
    cpus = request.tasks * (request.cpus_per_task or 1)
    kinds = _with_room(kinds, lambda kind: kind.cores, cpus, lambda most: _cpus(request, most))
    memory = request.memory_mb or (request.memory_per_cpu_mb or 0) * cpus
    kinds = _with_room(kinds, lambda kind: kind.memory_mb, memory, lambda most: _memory(request, most))
    _check_nodes(request, partition, kinds)
    _check_time(request, partition)
    return request, [*_unwise(request, partition, kinds)]


def fitted_anywhere(request: Request) -> tuple[Request, list[str]]:
    """Do what can be done without a profile."""
    _check_tasks(request)
    return request, []


def _with_defaults(request: Request, partition: Partition) -> Request:
    """Return the request with what the partition says where nothing is typed."""
    asked = partition.defaults
    if request.gpus_per_node is None and asked.gpus_per_node is not None:
        request = replace(request, gpus_per_node=asked.gpus_per_node)
    if request.gpu is None and request.gpus_per_node:
        request = replace(request, gpu=asked.gpu)
    if request.memory_mb is None and request.memory_per_cpu_mb is None:
        request = replace(request, memory_mb=asked.memory_mb)
    changes = {"cpus_per_task": request.cpus_per_task or asked.cpus_per_task, "time": request.time or asked.time}
    request = replace(request, **changes)  # type: ignore[arg-type]
    _check_tasks(request)
    return request


def _check_tasks(request: Request) -> None:
    if request.gpus_per_node and request.tasks > request.gpus_per_node:
        raise BadInput(
            f"--tasks-per-node {request.tasks} with {request.gpus_per_node} GPUs on a node: every worker needs a GPU "
            f"of its own; use --tasks-per-node {request.gpus_per_node}"
        )


def _of_type(request: Request, profile: Profile, partition: Partition) -> Sequence[NodeKind]:
    """Return the kinds of nodes that have the type of GPU that is asked for."""
    if not request.gpus_per_node:
        return partition.nodes
    types = [kind.gpu for kind in partition.nodes if kind.gpus and kind.gpu]
    if request.gpu is None:
        if "{type}" in profile.gpu_option and len(types) > 1:
            raise BadInput(
                f"--gpus-per-node {request.gpus_per_node}: partition {request.partition} has several types of GPU; "
                f"give one too: {', '.join(f'{one}:{request.gpus_per_node}' for one in types)}"
            )
        return partition.nodes
    if not types:
        raise BadInput(
            f"--gpus-per-node {request.gpu}:{request.gpus_per_node}: partition {request.partition} has one type of "
            f"GPU; give the number alone: --gpus-per-node {request.gpus_per_node}"
        )
    chosen = [kind for kind in partition.nodes if kind.gpu == request.gpu]
    if not chosen:
        raise BadInput(
            f"--gpus-per-node {request.gpu}:{request.gpus_per_node}: partition {request.partition} has no GPUs of type "
            f"{request.gpu}{nearest(request.gpu, types)}"
        )
    return chosen


def _with_room(
    kinds: Sequence[NodeKind],
    size: Callable[[NodeKind], int | None],
    asked: int,
    refusal: Callable[[int], BadInput],
) -> Sequence[NodeKind]:
    """Return the kinds that have as much as is asked for, or do not say; refuse with the most that there is."""
    room = [kind for kind in kinds if (most := size(kind)) is None or asked <= most]
    if room:
        return room
    raise refusal(max(size(kind) or 0 for kind in kinds))


def _gpus(request: Request, most: int) -> BadInput:
    asked = request.gpus_per_node or 0
    if not most:
        return BadInput(f"--gpus-per-node {asked}: partition {request.partition} has no GPUs; leave it out")
    total = asked * request.nodes
    nodes = -(-total // most)
    each = -(-total // nodes)
    kind = f"{request.gpu}:" if request.gpu else ""
    return BadInput(
        f"--gpus-per-node {asked}: a node of partition {request.partition} has {most} GPUs"
        f"{f' of type {request.gpu}' if request.gpu else ''}; the nearest that fits is --nodes {nodes} "
        f"--gpus-per-node {kind}{each}"
    )


def _cpus(request: Request, most: int) -> BadInput:
    each = most // request.tasks
    problem = (
        f"{plural(request.tasks, 'task')} of {plural(request.cpus_per_task or 1, 'CPU')} need "
        f"{request.tasks * (request.cpus_per_task or 1)}"
    )
    fits = f"--cpus-per-task {each}" if each else f"--tasks-per-node {most} --cpus-per-task 1"
    return BadInput(
        f"{problem} CPUs, and a node of partition {request.partition} has {most}: the nearest that fits is {fits}"
    )


def _memory(request: Request, most: int) -> BadInput:
    cpus = request.tasks * (request.cpus_per_task or 1)
    if request.memory_per_cpu_mb is not None:
        asked = f"--mem-per-cpu {request.memory_per_cpu_mb} on {cpus} CPUs is {request.memory_per_cpu_mb * cpus} MB"
        fits = f"--mem-per-cpu {most // cpus}"
    else:
        asked, fits = f"--mem {request.memory_mb}", f"--mem {most}"
    return BadInput(
        f"{asked}: a job may have at most {most} MB on a node of partition {request.partition}; the nearest that fits "
        f"is {fits}"
    )


def _check_nodes(request: Request, partition: Partition, kinds: Sequence[NodeKind]) -> None:
    counts = [kind.count for kind in kinds]
    there = None if None in counts else sum(count or 0 for count in counts)
    limits = [limit for limit in (there, partition.most_nodes) if limit is not None]
    if limits and request.nodes > min(limits):
        kind = f" with {request.gpu}" if request.gpu else ""
        raise BadInput(
            f"--nodes {request.nodes}: a job may have at most {min(limits)} nodes{kind} of partition "
            f"{request.partition}; the nearest that fits is --nodes {min(limits)}"
        )


def _check_time(request: Request, partition: Partition) -> None:
    most = partition.most_time
    if most is not None and request.time is not None and minutes(request.time, "--time") > minutes(most, "most_time"):
        raise BadInput(
            f"--time {request.time}: a job of partition {request.partition} may take at most {most}; the nearest that "
            f"fits is --time {most}"
        )


def _unwise(request: Request, partition: Partition, kinds: Sequence[NodeKind]) -> list[str]:
    """Return what would start, but is not what one wants."""
    told = []
    if request.nodes > 1 and not any(kind.fast_network for kind in kinds):
        what = f"nodes with {request.gpu}" if request.gpu else "these nodes"
        others = [kind.gpu for kind in partition.nodes if kind.fast_network and kind.gpu]
        instead = f", or take {' or '.join(others)}" if others else ""
        told.append(f"{what} are not on the fast network (InfiniBand): use one node of them{instead}")
    if request.gpus_per_node and request.tasks < request.gpus_per_node:
        told.append(
            f"{request.gpus_per_node} GPUs and {request.tasks} tasks on a node: a worker uses one GPU, and the others "
            f"are idle; use --tasks-per-node {request.gpus_per_node}"
        )
    if partition.memory_must_be_asked and request.memory_mb is None and request.memory_per_cpu_mb is None:
        told.append(f"without --mem or --mem-per-cpu a job of partition {request.partition} gets very little memory")
    share = [kind for kind in kinds if kind.gpus and kind.memory_mb and request.memory_mb == kind.memory_mb]
    if share and 0 < (request.gpus_per_node or 0) < share[0].gpus:
        fair = share[0].memory_mb * (request.gpus_per_node or 0) // share[0].gpus  # type: ignore[operator]
        told.append(
            f"all memory of a node for {request.gpus_per_node} of its {share[0].gpus} GPUs: the other GPUs cannot be "
            f"used meanwhile; the share of these is --mem {fair}"
        )
    return told
