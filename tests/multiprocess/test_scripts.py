"""`lockstep launch`: any script under any launcher."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands import LOCKSTEP, CommandLine, Marked
from tests.contract.ways import make, params

STOCK = str(Path(__file__).parents[1] / "scripts" / "stock.py")
OWN_LOOP = str(Path(__file__).parents[2] / "examples" / "own_loop.py")
STOCK_DDP = str(Path(__file__).parents[2] / "examples" / "stock_ddp.py")
LAUNCHERS = ["spawn", "torchrun", "srun", "openmpi", "mpich"]


def launcher(name: str, request: pytest.FixtureRequest, cwd: Path) -> tuple[list[str], Marked]:
    _, marked = make(name, request, cwd)
    return [LOCKSTEP, "launch", "--launcher", "mpirun" if "mpi" in name else name, "--workers", "2"], marked


@pytest.mark.parametrize("name", params(LAUNCHERS))
def test_a_stock_script(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    command, marked = launcher(name, request, tmp_path)
    done = marked.run([*command, STOCK], tmp_path)
    assert done.code == 0, done.text
    # mpirun may put two ranks' words on one line
    ranks = sorted(re.findall(r"rank \d of 2 local \d sum 3 threads \d+", done.out))
    assert ranks == ["rank 0 of 2 local 0 sum 3 threads 1", "rank 1 of 2 local 1 sum 3 threads 1"]
    assert marked.survivors() == []


@pytest.mark.parametrize("name", params(LAUNCHERS, always=["spawn", "srun"]))
def test_a_failing_script_ends_all(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    command, marked = launcher(name, request, tmp_path)
    done = marked.run([*command, STOCK, "--", "--fail"], tmp_path)
    assert done.code == 1, done.text
    assert f"{STOCK} failed" in done.err
    assert marked.survivors() == []


@pytest.mark.parametrize("name", params(LAUNCHERS, always=["openmpi"]))
def test_the_example_of_an_own_loop(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    command, marked = launcher(name, request, tmp_path)
    done = marked.run([*command, OWN_LOOP], tmp_path)
    assert done.code == 0, done.text
    assert "on 2 workers, digest" in done.out
    assert done.out.count("loss") == 1


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.soak), "shm"])
def test_the_example_of_a_stock_loop(backend: str, cli: CommandLine) -> None:
    done = cli.apart("launch", "--workers", "2", STOCK_DDP, "--", "--backend", backend)
    assert done.code == 0, done.text
    ranks = re.findall(r"rank (\d) of 2: loss \d+\.\d+, weights (-?\d+\.\d+)", done.out)
    assert sorted(rank for rank, _ in ranks) == ["0", "1"], done.text
    assert ranks[0][1] == ranks[1][1]


def test_inline(cli: CommandLine) -> None:
    done = cli.apart("launch", "--launcher", "inline", OWN_LOOP)
    assert done.code == 0, done.text
    assert "on 1 worker," in done.out


@pytest.mark.thinned("name", 3)
@pytest.mark.parametrize("name", ["inline", "spawn", "torchrun"])
@pytest.mark.parametrize(
    ("typed", "env", "threads"),
    [([], {}, 1), ([], {"OMP_NUM_THREADS": "2"}, 2), (["--threads", "1"], {"OMP_NUM_THREADS": "2"}, 1)],
)
def test_threads_of_one_worker(
    name: str, typed: list[str], env: dict[str, str], threads: int, tmp_path: Path, cli: CommandLine
) -> None:
    """What is typed, else the variable, else one: under every launcher, also for `join()`."""
    script = tmp_path / "threads.py"
    before, after = "print('torch', torch.get_num_threads())", "print('join', torch.get_num_threads(), world.threads)"
    script.write_text(f"import torch, lockstep\n{before}\nwith lockstep.join() as world:\n    {after}\n")
    done = cli.apart("launch", "--launcher", name, *typed, str(script), env=env)
    assert done.code == 0, done.text
    assert done.out.split() == ["torch", str(threads), "join", str(threads), str(threads)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "the script missing.py does not exist"),
        ([], "launch needs a script to start"),
        (["--nproc-per-node", "2", STOCK], "no option --nproc-per-node (torchrun's): type --workers N"),
        (["--nproc_per_node=2", STOCK], "no option --nproc_per_node (torchrun's): type --workers N"),
        (["--standalone", STOCK], "no option --standalone (torchrun's): type nothing"),
        (["--wrokers", "2", STOCK], "no option --wrokers; did you mean '--workers'?"),
        (["-m", "no_such_package.train"], "there is no module no_such_package.train"),
        (["--launcher", "spwan", STOCK], "no launcher called 'spwan'; did you mean 'spawn'?"),
        (["--launcher", "inline", "--workers", "2", STOCK], "launcher inline runs one worker"),
    ],
)
def test_refused(arguments: list[str], words: str, cli: CommandLine) -> None:
    done = cli.apart("launch", *arguments)
    assert done.code == 2, done.text
    assert words in done.err


@pytest.mark.parametrize("name", ["spawn", "torchrun", "inline"])
def test_a_module_with_its_own_options(name: str, tmp_path: Path, cli: CommandLine) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("NUMBER = 7\n")
    (package / "train.py").write_text("import sys\nfrom . import NUMBER\nprint('module', NUMBER, sys.argv[1:])\n")
    workers = "1" if name == "inline" else "2"
    typed = ["launch", "--workers", workers, "--launcher", name, "-m", "mine.train", "--lr", "0.1", "file"]
    done = cli.apart(*typed)
    assert done.code == 0, done.text
    assert done.out.count("7 ['--lr', '0.1', 'file']") == int(workers), done.text


def test_options_of_the_script_need_no_separator(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('script', sys.argv[1:])\n")
    done = cli.apart("launch", "train.py", "--lr", "0.1")
    assert "script ['--lr', '0.1']" in done.out, done.text
    done = cli.apart("launch", "train.py", "--", "--lr", "0.1")
    assert "script ['--lr', '0.1']" in done.out, done.text


def test_an_option_of_the_script_that_launch_has_too(tmp_path: Path, cli: CommandLine) -> None:
    """As in the stock script for ImageNet, whose --workers are those of its DataLoader."""
    (tmp_path / "train.py").write_text("import sys\nprint('script', sys.argv[1:])\n")
    done = cli.apart("launch", "train.py", "--workers", "4")
    assert "script ['--workers', '4']" in done.out, done.text
    assert done.out.count("script") == 1
    assert "--workers comes after the script and goes to the script" in done.err
