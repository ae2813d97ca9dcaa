"""Whether a request fits a site: the limit and the nearest that fits, what is filled in, and what is unwise."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.cluster.fitting import fitted
from lockstep.cluster.profiles import load_profile
from lockstep.cluster.request import Request, minutes, read_gpus, read_memory
from lockstep.errors import BadInput


def fit(site: str, **asked: Any) -> tuple[Request, list[str]]:
    return fitted(Request(name="train", **asked), load_profile(site))


@pytest.mark.parametrize(
    ("partition", "gpus", "memory", "cpus"), [("ml", 6, 250000, 7), ("gpu2", 4, 60000, 6), ("alpha", 8, 990000, 6)]
)
def test_the_sites_own_numbers_are_filled_in(partition: str, gpus: int, memory: int, cpus: int) -> None:
    request, warnings = fit("zih", partition=partition, gpus_per_node=gpus)
    assert (request.memory_mb, request.cpus_per_task, request.tasks, warnings) == (memory, cpus, gpus, [])


def test_what_is_typed_wins() -> None:
    request, _ = fit("zih", partition="ml", cpus_per_task=3, memory_per_cpu_mb=1000, time="10")
    assert (request.cpus_per_task, request.memory_mb, request.memory_per_cpu_mb) == (3, None, 1000)


@pytest.mark.parametrize(
    ("site", "asked", "words"),
    [
        ("zih", {"partition": "mll"}, "no such partition; did you mean 'ml'"),
        (
            "zih",
            {"partition": "ml", "gpus_per_node": 8},
            "has 6 GPUs; .* is --nodes 2 --gpus-per-node 4",
        ),
        ("zih", {"partition": "ml", "memory_mb": 254000}, "at most 250000 MB .* nearest that fits is --mem 250000"),
        ("zih", {"partition": "gpu2", "memory_mb": 62000}, "at most 60000 MB .* nearest that fits is --mem 60000"),
        ("zih", {"partition": "ml", "gpus_per_node": 6, "cpus_per_task": 8}, "has 44: .* is --cpus-per-task 7"),
        ("zih", {"partition": "gpu2", "tasks_per_node": 30, "cpus_per_task": 1}, "has 24: .* --tasks-per-node 24"),
        ("zih", {"partition": "gpu2", "gpus_per_node": 4, "memory_per_cpu_mb": 4000}, "is --mem-per-cpu 2500"),
        ("zih", {"partition": "ml", "nodes": 31}, "at most 30 nodes of partition ml; .* is --nodes 30"),
        ("zih", {"partition": "ml", "gpus_per_node": 2, "tasks_per_node": 3}, "use --tasks-per-node 2"),
        ("zih", {"partition": "ml", "gpus_per_node": 2, "gpu": "V100"}, "one type of GPU; give the number alone"),
        ("alvis", {"gpus_per_node": 4}, "give one too: T4:4, V100:4, A40:4"),
        ("alvis", {"gpus_per_node": 4, "gpu": "A10"}, "no GPUs of type A10; did you mean"),
        ("alvis", {"gpus_per_node": 8, "gpu": "A100"}, "has 4 GPUs of type A100; .* --nodes 2 --gpus-per-node A100:4"),
        ("alvis", {"nodes": 9, "gpus_per_node": 4, "gpu": "A100fat"}, "at most 8 nodes with A100fat"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_nearest_that_does(site: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words) as refusal:
        fit(site, **asked)
    assert len(str(refusal.value).splitlines()) == 1


def test_several_nodes_without_infiniband_are_warned_of() -> None:
    assert "not on the fast network (InfiniBand)" in fit("alvis", nodes=2, gpus_per_node=4, gpu="A40")[1][0]
    assert fit("alvis", nodes=1, gpus_per_node=4, gpu="A40")[1] == []
    assert fit("alvis", nodes=2, gpus_per_node=4, gpu="A100")[1] == []


def test_idle_gpus_and_all_of_the_memory_are_warned_of() -> None:
    warnings = fit("zih", partition="ml", gpus_per_node=3, tasks_per_node=1)[1]
    assert "others are idle" in warnings[0]
    assert "the share of these is --mem 125000" in warnings[1]


def test_both_memories_are_refused() -> None:
    with pytest.raises(BadInput, match="--mem and --mem-per-cpu exclude each other"):
        Request(name="x", memory_mb=1, memory_per_cpu_mb=1)


@pytest.mark.parametrize(
    "asked",
    [
        {"partition": "a b"},
        {"account": "x\n#SBATCH --wrap=id"},
        {"array": "0-3;id"},
        {"nodes": 0},
        {"time": "soon"},
        {"time": "0"},
        {"gpu": "A100 --x", "gpus_per_node": 1},
    ],
)
def test_what_no_directive_can_hold_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refusal:
        Request(name="x", **asked)
    assert len(str(refusal.value).splitlines()) == 1


def test_numbers_as_slurm_reads_them() -> None:
    assert [read_memory(text, "--mem") for text in ("60000", "60G", "1T", "2048K")] == [60000, 61440, 1048576, 2]
    assert [minutes(text, "--time") for text in ("90", "90:30", "1:30:00", "2-12", "1-0:30")] == [
        90,
        90.5,
        90,
        3600,
        1470,
    ]
    assert [read_gpus(text) for text in ("4", "A100:4")] == [(None, 4), ("A100", 4)]
    for wrong in ("", "x", "A100:", ":x", "4:A100", "-1"):
        with pytest.raises(BadInput):
            read_gpus(wrong)
    for wrong in ("", "0", "-5", "60X", "9" * 20):
        with pytest.raises(BadInput):
            read_memory(wrong, "--mem")
