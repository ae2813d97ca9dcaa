"""Who started me: against environments captured from real launchers, and made-up broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.world.detect import conflicts, detect, node_names, tasks_per_node
from lockstep.world.place import Place

CAPTURED = Path(__file__).parent / "environments"


def captured(name: str) -> dict[str, str]:
    content: dict[str, str] = json.loads((CAPTURED / f"{name}.json").read_text())
    return content


@pytest.mark.parametrize(
    ("name", "launcher", "rank", "size", "local_rank", "local_size", "node", "nodes"),
    [
        ("torchrun-2", "torchrun", 1, 2, 1, 2, 0, 1),
        ("openmpi-2", "openmpi", 1, 2, 1, 2, 0, 1),
        ("mpich-2", "mpich", 1, 2, 1, 2, 0, 1),
        ("srun-2x2", "srun", 3, 4, 1, 2, 1, 2),
        ("srun-pmi2", "srun", 3, 4, 1, 2, 1, 2),
        ("srun-in-sbatch", "srun", 3, 4, 1, 2, 1, 2),
        ("salloc-srun", "srun", 3, 4, 1, 2, 1, 2),
        ("torchrun-in-srun", "torchrun", 1, 2, 1, 2, 0, 1),
        ("openmpi-in-salloc", "openmpi", 1, 2, 1, 2, 0, 1),
        ("mpich-in-salloc", "mpich", 1, 2, 1, 2, 0, 1),
        ("salloc-alone", "inline", 0, 1, 0, 1, 0, 1),
    ],
)
def test_captured_environments(
    name: str, launcher: str, rank: int, size: int, local_rank: int, local_size: int, node: int, nodes: int
) -> None:
    place = detect(captured(name))
    assert (place.launcher, place.rank, place.size) == (launcher, rank, size)
    assert (place.local_rank, place.local_size, place.node, place.nodes) == (local_rank, local_size, node, nodes)
    assert all(variable in captured(name) for variable in place.evidence if "MASTER" not in variable)


def test_nobody() -> None:
    assert detect({}) == Place(launcher="inline")


def test_slurm_head_is_the_first_node_of_the_step() -> None:
    assert detect(captured("srun-2x2")).head == "n1"


def test_a_step_has_a_name_that_no_other_has() -> None:
    one = captured("srun-2x2")
    other = {**one, "SLURM_SRUN_COMM_PORT": "1"}
    assert detect(one).job == detect({**one, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}).job
    assert detect(one).job != detect(other).job


def test_sbatch_without_srun_is_explained() -> None:
    with pytest.raises(BadInput, match=r"Slurm job of 4 tasks .* no srun step.*3 others that nobody started.*srun"):
        detect(captured("sbatch-alone"))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RANK": "0"}, r"RANK is set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2"}, r"WORLD_SIZE is set, but not RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, r"but not MASTER_PORT"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, r"OMPI_COMM_WORLD_SIZE.*are not"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, r"MPI_LOCALRANKID, MPI_LOCALNRANKS are not"),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}, r"WORLD_SIZE.*are not: start with torchrun"),
        ({"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, r"RANK='one', expected a whole"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, r"rank 2 of 2"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "4"},
            r"4 ranks on this host but only 2 in all",
        ),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, r"SLURM_STEP_NUM_TASKS.*are not"),
    ],
)
def test_half_a_set_names_what_is_missing(env: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        detect(env)


def test_a_set_is_never_filled_up_from_another() -> None:
    with pytest.raises(BadInput, match="not WORLD_SIZE"):
        detect({**captured("srun-2x2"), "RANK": "0"})


def test_by_hand() -> None:
    place = detect({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host-a", "MASTER_PORT": "29511"})
    assert (place.launcher, place.rank, place.head, place.port) == ("manual", 1, "host-a", 29511)
    assert not place.hosts_known


def test_conflicts_are_told() -> None:
    env = {**captured("srun-2x2"), "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    (sentence,) = conflicts(env)
    assert "srun also says rank 3 of 4" in sentence
    assert conflicts(captured("srun-2x2")) == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", []), ("1,2(x2)", [1, 2, 2])],
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],gpu7", ["n08", "n09", "n10", "n12", "gpu7"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a-b,c[1]-ib", ["a-b", "c1-ib"]),
        ("", []),
    ],
)
def test_node_names(text: str, names: list[str]) -> None:
    assert node_names(text) == names


@pytest.mark.parametrize("text", ["2(x", "two", "2;3"])
def test_unreadable_counts_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="expected the form"):
        tasks_per_node(text)
