"""Everything that can be asked wrongly: one message that says what to change, exit code 2, nothing made."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.commands import LOCKSTEP, TINY, CommandLine, Done, Marked, finish


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py"], "none.py does not exist"),
        ([f"{TINY}:breaks"], "no recipe today"),
        ([f"{TINY}:wrong"], "returned a dict, expected a lockstep.Recipe"),
        ([f"{TINY}:nothing"], "has no function nothing()"),
        (["cifar1000"], "did you mean 'cifar100'?"),
        ([TINY, "--strategy", "tourch-ddp"], "did you mean 'torch-ddp'?"),
        ([TINY, "--launcher", "slurm", "--workers", "2"], "no launcher called 'slurm'"),
        ([TINY, "--workers", "0"], "workers=0, expected at least 1"),
        ([TINY, "--workers", "4", "--lanes", "2"], "lanes=2 cannot be cut over 4 workers"),
        ([TINY, "--lanes", "0"], "lanes=0"),
        ([TINY, "--lanes", "5"], "lanes=5 does not divide the global batch of 12"),
        ([TINY, "--global-batch", "1000"], "larger than the data (96 samples)"),
        ([f"{TINY}:empty"], "the training data is empty"),
        ([TINY, "--steps", "0"], "--steps 0, expected at least 1"),
        ([TINY, "--workers", "2", "--launcher", "inline"], "launcher inline runs one worker, found 2"),
        ([TINY, "--rank", "0"], "needs --workers and --rendezvous too"),
        ([TINY, "--rank", "0", "--workers", "2", "--rendezvous", "nowhere"], "neither host:port nor file:///path"),
        ([TINY, "--rank", "2", "--workers", "2", "--rendezvous", "127.0.0.1:1"], "rank 2 of 2"),
        ([TINY, "--rendezvous", "127.0.0.1:1"], "give --rank and --workers"),
        ([TINY, "--device", "cuda"], "no accelerator is available on this machine"),
        ([TINY, "--device", "cuda", "--workers", "2"], "no accelerator is available on this machine"),
        ([TINY, "--backend", "nccl", "--workers", "2"], "--backend nccl: "),
        ([TINY, "--backend", "globe", "--workers", "2"], "no backend 'globe'"),
    ],
)
def test_refused(arguments: list[str], words: str, tmp_path: Path, cli: CommandLine) -> None:
    done = cli("run", *arguments, "--out", "out")
    assert words in done.err, done.text
    assert done.code == 2, done.text
    assert done.err.count("lockstep: ") == 1
    assert not (tmp_path / "out").exists()


def test_unknown_flag(cli: CommandLine) -> None:
    done = cli.apart("run", "--wrokers", "2")
    assert done.code == 2
    assert "--workers" in done.err


@pytest.mark.parametrize("program", ["srun", "mpirun"])
def test_launcher_that_is_not_installed(program: str, tmp_path: Path, cli: CommandLine) -> None:
    done = cli.apart("run", TINY, "--workers", "2", "--launcher", program, env={"PATH": str(tmp_path)})
    assert done.code == 2, done.text
    assert f"{program} is not installed" in done.err


def test_output_folder_exists(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "out").mkdir()
    done = cli("run", TINY, "--out", "out")
    assert done.code == 2
    assert "exists already: choose another --out" in done.err


def test_output_folder_cannot_be_made(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "file").write_text("")
    done = cli("run", TINY, "--out", "file/out", "--workers", "2")
    assert done.code == 2
    assert "cannot make the output folder" in done.err


def by_hand(rank: int, rendezvous: str, *more: str) -> list[str]:
    return ["run", TINY, "--workers", "2", "--rank", str(rank), "--rendezvous", rendezvous, *more]


def test_an_occupied_port(cli: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = cli.apart(*by_hand(0, f"127.0.0.1:{port}"))
    assert done.code == 2, done.text
    assert f"cannot listen on 127.0.0.1:{port}" in done.err
    assert "choose another port" in done.err


def test_two_processes_claim_one_rank(tmp_path: Path) -> None:
    """Three are started, two of them as rank 1: one of those is refused, and the other two train."""
    marked, where = Marked(), f"file://{tmp_path / 'meet'}"
    started = [marked.start([LOCKSTEP, *by_hand(rank, where, "--out", "out")], tmp_path) for rank in (1, 1, 0)]
    done: list[Done] = [finish(process) for process in started]
    assert sorted(one.code for one in done) == [0, 0, 2], [one.text for one in done]
    refused = next(one for one in done if one.code == 2)
    assert "rank 1 of 2 is already taken" in refused.err


def test_workers_that_disagree_with_the_launcher(cli: CommandLine) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = cli.apart("run", TINY, "--workers", "4", env=env)
    assert done.code == 2
    assert "--workers 4, but manual started 2" in done.err


@pytest.mark.parametrize("command", ["doctor", "run"])
def test_half_a_set_of_variables(command: str, cli: CommandLine) -> None:
    done = cli.apart(command, env={"RANK": "0"})
    assert done.code == 2
    assert "RANK is set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT" in done.err
