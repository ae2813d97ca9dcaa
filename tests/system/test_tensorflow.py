"""TensorFlow itself under every launcher, in its own environment: the same sum, no torch, and deaths that are named."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from lockstep.bench.ranks.namespaces import hosts
from lockstep.errors import BadInput
from lockstep.launch.start import start_run
from lockstep.report.collect import FinishedRun, read_finished
from lockstep.train.spec import RunSpec
from lockstep.world.addresses import free_port
from tests.commands import BIN, TINY, CommandLine, Done, Marked, finish
from tests.documentation.blocks import blocks
from tests.documentation.printed import missing_lines
from tests.multiprocess.test_scripts import launcher
from tests.services import require
from tests.system.host_names import names_for

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "tensorflow_loop.py")
SCRIPTS = ROOT / "tests" / "scripts"
SOAK = pytest.mark.soak
LOSS = re.compile(r"rank (\d) of (\d), started by ([a-z]+): loss (\d\.\d+)")


SAYS_WHY_NOT = """
import lockstep.tensorflow
try:
    lockstep.tensorflow.join()
except Exception as error:
    print(error)
"""


def test_the_page_has_commands_that_are_run_here() -> None:
    page = (ROOT / "docs" / "tensorflow.md").read_text(encoding="utf-8")
    typed = {line.partition("#")[0].strip() for line in page.splitlines() if line.startswith(("lockstep ", "make "))}
    example = "--workers 2 examples/tensorflow_loop.py"
    assert typed == {
        "make tensorflow",
        f"lockstep launch --framework tensorflow {example}",
        f"lockstep launch --framework tensorflow {example.replace('2 ', '2 --launcher srun --nodes 2 ')}",
        f"lockstep {COMPARE}",
    }


COMPARE = "compare mlp --strategies single --peers --workers 2 --lanes 4 --threads 1 --steps 20 --repeats 1 --out out"


@pytest.fixture(scope="module")
def alone(tensorflow_python: str, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The loss of one worker, from the plain script."""
    done = Marked().run([tensorflow_python, EXAMPLE], tmp_path_factory.mktemp("alone"))
    found = LOSS.findall(done.out)
    assert [line[:3] for line in found] == [("0", "1", "inline")], done.text
    return float(found[0][3])


def check(done: Done, alone: float, started_by: str) -> None:
    assert done.code == 0, done.text
    found = sorted(LOSS.findall(done.out))
    assert [line[:3] for line in found] == [("0", "2", started_by), ("1", "2", started_by)], done.text
    assert [float(line[3]) for line in found] == [pytest.approx(alone, abs=1e-5)] * 2


@pytest.mark.parametrize(
    "name", ["spawn", pytest.param("torchrun", marks=SOAK), "srun", pytest.param("openmpi", marks=SOAK)]
)
def test_launched(name: str, alone: float, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`lockstep launch` finds the environment, and the ranks have its Python."""
    command, marked = launcher(name, request, tmp_path)
    nodes = ["--nodes", "2"] if name == "srun" else []
    done = marked.run([*command, *nodes, "--framework", "tensorflow", EXAMPLE], tmp_path)
    check(done, alone, name)
    if name == "spawn":
        [shown] = [block for block in blocks(ROOT / "docs" / "guide" / "12-tensorflow.md") if block.language == "text"]
        assert missing_lines(shown.text, done.out) == []
    assert marked.survivors() == []


def by_variables(python: str, script: str, tmp_path: Path, **fields: str) -> list[subprocess.Popen[str]]:
    """A terminal per rank, with torch's own variables."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **fields}
    marks = [Marked({**common, "RANK": str(rank)}) for rank in range(2)]
    return [one.start([python, script], tmp_path) for one in marks]


@SOAK
@pytest.mark.parametrize("name", ["by variables", "torchrun", "srun over nodes", "mpich"])
def test_typed(name: str, tensorflow_python: str, alone: float, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A launcher in front of the plain script: no Lockstep but `join()`."""
    if name == "by variables":
        done = [finish(one) for one in by_variables(tensorflow_python, EXAMPLE, tmp_path)]
        check(Done(max(one.code for one in done), "".join(one.out for one in done), done[0].err), alone, "manual")
        return
    if name == "torchrun":
        front = [str(BIN / "torchrun"), "--nproc-per-node", "2", "--no-python"]  # its run has no name: "none"
        marked = Marked({"MASTER_PORT": str(free_port())})
        front += ["--master-port", marked.env["MASTER_PORT"]]
    elif name == "mpich":
        front, marked = [request.getfixturevalue("mpich"), "-n", "2"], Marked()
    else:
        front, marked = ["srun", "-N", "2", "-n", "2"], Marked(request.getfixturevalue("slurm").env)
    done_typed = marked.run([*front, tensorflow_python, EXAMPLE], tmp_path)
    check(done_typed, alone, name.split()[0])
    assert marked.survivors() == []


def test_two_hosts(tensorflow_python: str, alone: float, tmp_path: Path) -> None:
    """Hosts that share no loopback: the addresses in TF_CONFIG are those by which they reach each other.

    The head knows itself by a loopback address.
    """
    require("ip")
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29613"}
    with hosts() as made, names_for(made) as head:
        common["MASTER_ADDR"] = head
        started = [
            Marked({**common, "RANK": str(rank)}).start(host.command(tensorflow_python, EXAMPLE), tmp_path)
            for rank, host in enumerate(made)
        ]
        done = [finish(one) for one in started]
    check(Done(max(one.code for one in done), "".join(one.out for one in done), done[1].err), alone, "manual")


def test_a_rank_that_dies_is_named(tensorflow_python: str, tmp_path: Path) -> None:
    """Nobody but the other rank notices: there is no launcher."""
    started = by_variables(tensorflow_python, str(SCRIPTS / "tensorflow_dies.py"), tmp_path)
    done = [finish(one) for one in started]
    assert done[0].code == 1, done[0].text
    assert done[1].code == -9, done[1].text
    assert (
        f"rank 1 of 2 (host {Path('/etc/hostname').read_text().strip()}, process {started[1].pid}) ended" in done[0].err
    )


def test_parameter_servers_and_a_script_that_knows_nothing_of_lockstep(
    tensorflow_python: str, cli: CommandLine
) -> None:
    script = str(SCRIPTS / "tensorflow_servers.py")
    arguments = ["--framework", "tensorflow", "--workers", "3", "--parameter-servers", "1", script]
    done = cli.apart("launch", *arguments)
    assert done.code == 0, done.text
    assert "counted to 5 on /job:ps" in done.out, done.text
    assert sorted(re.findall(r"(\w+) serves", done.out)) == ["ps", "worker"], done.text
    assert done.err.count("parameter servers: the workers update the weights whenever they are ready") == 1, done.text


def test_fit_is_named_before_the_start(tensorflow_python: str, cli: CommandLine) -> None:
    script = str(SCRIPTS / "tensorflow_fit.py")
    done = cli.apart("launch", "--framework", "tensorflow", "--workers", "2", script)
    assert done.code == 1, done.text
    warning = done.err.index(f"{script}, line 10, calls .fit(): that of Keras 3.")
    assert warning < done.err.index("Traceback"), done.text


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["--workers", "2"], {"TF_CONFIG": "x"}, "TF_CONFIG='x' cannot be read"),
        (
            ["--workers", "2"],
            {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})},
            "TF_CONFIG is set here, and all 2 ranks would get the same: unset it",
        ),
        (["--workers", "2", "--parameter-servers", "1"], {}, "1 need at least 3 ranks"),
        (["--launcher", "inline"], {}, "use --launcher spawn"),
        ([], {"LOCKSTEP_TENSORFLOW_PYTHON": "/nowhere/python"}, "/nowhere/python, cannot be started"),
    ],
)
def test_refused_before_the_start(
    arguments: list[str], env: dict[str, str], words: str, tensorflow_python: str, cli: CommandLine
) -> None:
    done = cli.apart("launch", "--framework", "tensorflow", *arguments, EXAMPLE, env=env)
    assert done.code == 2, done.text
    assert words in done.err


def test_a_port_of_a_config_that_is_taken(tensorflow_python: str, tmp_path: Path) -> None:
    """Both ranks say the same: one of them knows what is wrong, and tells the other."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = {"worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{port}"]}
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = []
        for rank in range(2):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
            started.append(
                Marked({**common, "RANK": str(rank), "TF_CONFIG": config}).start(
                    [tensorflow_python, "-c", SAYS_WHY_NOT], tmp_path
                )
            )
        done = [finish(one) for one in started]
    for one in done:
        assert f"port {port}, which TF_CONFIG gives to rank 1 on " in one.out, one.text
        assert "is in use by another program" in one.out


def order(recipe: str, strategy: str, workers: int = 1) -> RunSpec:
    return RunSpec(
        recipe=recipe,
        strategy=strategy,
        workers=workers,
        lanes=4,
        threads=1,
        steps=20,
        progress=False,
        launcher="spawn",
    )


def check_twin(run: FinishedRun, single: FinishedRun, workers: int, *, near: float) -> None:
    """The same training, up to rounding: `near` is how far the losses may be apart over 20 steps.

    After one step the weights are the same to six digits, so data, order, lanes, dropout, gradients, optimizer are;
    after all steps as near as the losses.
    """
    assert len(run.losses) == len(single.losses) == 20
    assert run.losses[:3] == pytest.approx(single.losses[:3], abs=1e-4)
    assert run.losses == pytest.approx(single.losses, abs=near)
    assert [line.step for line in run.fingerprints] == [line.step for line in single.fingerprints]
    places = {0: min(near, 2e-6), -1: near}
    for (place, digits), kind in itertools.product(places.items(), ("parameters", "buffers")):
        mine, theirs = (getattr(one.fingerprints[place], kind) for one in (run, single))
        assert {name: one.norm for name, one in mine.items()} == pytest.approx(
            {name: one.norm for name, one in theirs.items()}, rel=digits
        )
    assert run.result.metrics == pytest.approx(single.result.metrics, abs=0.01)
    assert set(run.result.metrics) == {"loss", "accuracy"}
    assert len(run.result.ranks) == len(run.result.peak_memory) == workers
    for steps in run.steps:
        assert {line.weight for line in steps} == {64 / workers}
        for line in steps[2:]:
            assert line.seconds is not None
            assert sum(line.seconds.values()) == pytest.approx(line.total, rel=0.05, abs=1e-3)
            assert (line.sent > 0) == (workers > 1) if line.sent is not None else False
    assert sorted(path.name for path in run.folder.iterdir()) == sorted(
        ["final.safetensors", "fingerprints.jsonl", "result.json", "run.json"]
        + [f"rank-{rank}.jsonl" for rank in range(workers)]
    )


NEAR = {"mlp": 1e-4, "cifar100": 1e-4, "cifar100:float64": 1e-9}
"""Both were within 1e-6: they have no kink where rounding makes a gradient jump, as a ReLU has at 0."""


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], FinishedRun]:
    folder = tmp_path_factory.mktemp("single")
    return cache(lambda recipe: read_finished(start_run(order(recipe, "single"), folder / recipe)))


@pytest.mark.parametrize(
    ("recipe", "workers"),
    [
        pytest.param("mlp", 1, marks=SOAK),
        pytest.param("cifar100", 1, marks=SOAK),
        ("cifar100", 2),
        pytest.param("cifar100:float64", 1, marks=SOAK),
        pytest.param("cifar100:float64", 2, marks=SOAK),
    ],
)
def test_a_twin(
    recipe: str, workers: int, tensorflow_python: str, single: Callable[[str], FinishedRun], tmp_path: Path
) -> None:
    run = read_finished(start_run(order(recipe, "tensorflow", workers), tmp_path / "run"))
    check_twin(run, single(recipe), workers, near=NEAR[recipe])
    assert run.result.exchange == ("TensorFlow's all-reduce over gRPC" if workers > 1 else "")


def test_a_row_of_a_comparison(tensorflow_python: str, cli: CommandLine, tmp_path: Path) -> None:
    """The command of docs/tensorflow.md, with the other peers."""
    done = cli.apart(*COMPARE.split())
    assert done.code == 0, done.text
    assert re.search(r"^ *tensorflow +2 +1 ", done.out, re.MULTILINE), done.text
    run, other = (read_finished(tmp_path / "out" / f"{name}-1") for name in ("tensorflow", "single"))
    check_twin(run, other, 2, near=NEAR["mlp"])


def test_a_recipe_without_a_twin(tensorflow_python: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="trains its own twins of the recipes mlp and cifar100"):
        start_run(order(TINY, "tensorflow"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
