"""What is fuzzed: each kind makes a good input once, and then reads changed copies of it, one for each seed."""

from __future__ import annotations

import io
import json
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from msgspec import structs
from rich.console import Console
from torch import Tensor, nn, optim
from torch.nn import functional as F

from lockstep import Trainer, World
from lockstep.cluster.batch_file import BatchFile
from lockstep.cluster.fitting import fitted
from lockstep.cluster.profiles import SITES, read_profile
from lockstep.cluster.request import Request
from lockstep.data import Ragged
from lockstep.errors import BadInput
from lockstep.launch.interruption import interruption
from lockstep.report.files import json_text, write_all
from lockstep.report.gather import gather
from lockstep.report.tensorboard import scalars
from lockstep.report.terminal import show
from lockstep.runs.listing import listed
from lockstep.train.checkpoint_folder import path_of
from lockstep.train.checkpoint_header import refuse_other
from lockstep.train.records import Lines, write_document
from lockstep.train.resume import read_standing, resumed_spec
from lockstep.train.schema.plan_json import ComparisonPlan, Way
from lockstep.world.detect import conflicts, detect
from lockstep.world.resources import choose_threads
from tests.fuzz.mutators import change_bytes, change_json, change_tree, replace_file, restore
from tests.unit.report.causes import fingerprints
from tests.unit.report.folders import make_run
from tests.unit.report.values import setup
from tests.unit.tensor_files import sealed, with_content, with_header

FILES = ("run.json", "result.json", "rank-0.jsonl", "fingerprints.jsonl")
PAGES = 1 / 16
"""The share of cases in which a page is made."""
ENVIRONMENTS = Path(__file__).parents[1] / "unit" / "environments"
FORGERS = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""What may go wrong while a checkpoint is forged: then its bytes are changed instead."""


class Fuzzed(ABC):
    """One kind of input."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def read(self, chance: random.Random) -> None:
        """Change the good input and read it; BadInput is a refusal."""

    def case(self, seed: int) -> str:
        """Run one case; return how it was refused, or nothing."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.read(random.Random(f"{self.name} {seed}"))
        except BadInput as error:
            text = str(error)
            assert len(text.splitlines()) == 1, f"not one line: {text!r}"
            return text
        return ""


class OneFile(Fuzzed):
    """A kind whose input is a file among others: it is changed, read, and put back."""

    def change(
        self, path: Path, chance: random.Random, change: Callable[[bytes], bytes], use: Callable[[], None]
    ) -> None:
        """Use a file that was changed, and put it back."""
        whole = path.read_bytes()
        try:
            if chance.random() < 0.04:
                replace_file(path, chance)
            else:
                path.write_bytes(change(whole))
            use()
        finally:
            restore(path, whole)


class Report(OneFile):
    """Every report of a comparison of two ways, one of two ranks, with a plan, fingerprints and an earlier report."""

    name = "report"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.all, self.out = folder / "all", folder / "out"
        self.out.mkdir(parents=True)
        make_comparison(self.all)

    def read(self, chance: random.Random) -> None:
        run = chance.choice(("single-1", "torch-ddp-1", "."))
        name = chance.choice(("plan.json", "comparison.json") if run == "." else FILES)
        change = partial(change_json, chance=chance, lines=name.endswith(".jsonl"))
        self.change(self.all / run / name, chance, change, partial(self.report, chance.random()))

    def report(self, share: float) -> None:
        """Make what `lockstep report` makes; the page and the tables, which take long, in a share of the cases."""
        comparison = gather([self.all])
        json_text(comparison.as_json())
        if share < PAGES:
            write_all(comparison, self.out)
        if share < 2 * PAGES:
            show(comparison, Console(file=io.StringIO(), width=100), per_rank=True)
        for runs in comparison.runs.values():
            for run in runs:
                list(scalars(run))


def make_comparison(folder: Path) -> None:
    """Write a good comparison folder."""
    ways = []
    for name, workers in (("single", 1), ("torch-ddp", 2)):
        run = make_run(folder / f"{name}-1", strategy=name, workers=workers, state=name)
        lines = Lines(run / "fingerprints.jsonl")
        for step in (0, 1, 5):
            lines.write(fingerprints(step, buffers={"norm.running_mean": 1.0}, weight=1.0 + step * workers))
        lines.close()
        ways.append(Way(name=name, spec=setup(name, workers).spec))
    plan = ComparisonPlan(
        title="t", command="c", ways=tuple(ways), repeats=1, time_limit=None, source="", versions={"torch": "2.13.0"}
    )
    write_document(folder / "plan.json", plan)
    write_all(gather([folder]), folder)


def forge(data: bytes, chance: random.Random) -> bytes:
    """Change a checkpoint: bytes as they are, or header or content with a hash that is right again."""
    what = chance.random()
    try:
        if what < 0.2:
            return sealed(change_bytes(data, chance))
        if what < 0.5:
            return with_header(lambda header: change_tree(header, chance))(data)
        if what < 0.9:
            return with_content(lambda content: change_tree(content, chance))(data)
    except FORGERS:
        pass  # not even the forger can read it
    return change_bytes(data, chance)


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def _loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _schedule(optimizer: optim.Optimizer) -> optim.lr_scheduler.LRScheduler:
    return optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])


def make_trainer(strategy: str = "single") -> Trainer:
    """Return a small trainer."""
    torch.set_num_threads(1)
    world = World.alone(threads=1)
    options: dict[str, Any] = {"strategy": strategy, "workers": 2 if strategy == "dp" else 1, "lanes": 2}
    return Trainer(world, _net, partial(optim.AdamW, lr=0.1), _loss, schedule=_schedule, **options)


def save_checkpoint(path: Path) -> None:
    """Write a checkpoint after two steps."""
    trainer = make_trainer()
    data = [(torch.ones(3) * number, number % 2) for number in range(16)]
    for batch in trainer.batches(data, global_batch=8):
        trainer.step(batch)
    trainer.save(path)


class Checkpoint(OneFile):
    """`trainer.load`: what is refused changes nothing."""

    name = "checkpoint"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "one.safetensors"
        save_checkpoint(self.path)
        self.trainers = {strategy: make_trainer(strategy) for strategy in ("single", "dp")}

    def read(self, chance: random.Random) -> None:
        strategy = chance.choice(list(self.trainers))
        self.change(self.path, chance, partial(forge, chance=chance), partial(self.load, strategy))

    def load(self, strategy: str) -> None:
        """Load it, and compare the trainer after a refusal with the one before."""
        trainer = self.trainers[strategy]
        before = everything(trainer)
        try:
            trainer.load(self.path)
        except BadInput:
            assert everything(trainer) == before, "a refused load has changed something"
            raise
        self.trainers[strategy] = make_trainer(strategy)


def everything(trainer: Trainer) -> tuple[Any, ...]:
    """Return all that a load could change."""
    groups = [
        {key: str(value) for key, value in group.items() if key != "params"} for group in trainer.optimizer.param_groups
    ]
    schedule = trainer.strategy.tuned()[0].schedule
    state = "" if schedule is None else str(schedule.state_dict())
    return trainer.digest(), trainer.steps, trainer.epoch, trainer.epoch_step, groups, state


class Resume(OneFile):
    """A run folder that is to be resumed, listed, or told of after Ctrl-C."""

    name = "resume"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run = make_run(folder / "run", strategy="single", workers=1, state="a")
        save_checkpoint(path_of(self.run, 2))
        asked = setup("single", 1)
        write_document(self.run / "run.json", structs.replace(asked, spec=replace(asked.spec, recipe="mlp")))

    def read(self, chance: random.Random) -> None:
        name = chance.choice(("run.json", "run.json", "rank-0.jsonl", path_of(self.run, 2).name))
        change = partial(forge, chance=chance)
        if name.endswith(("json", "jsonl")):
            change = partial(change_json, chance=chance, lines=name.endswith("jsonl"))
        self.change(self.run / name, chance, change, self.use)

    def use(self) -> None:
        """Do what resuming does before a recipe is loaded."""
        listed(self.run)
        interruption(self.run, "run")
        standing = read_standing(self.run)
        refuse_other(standing.header.arithmetic, standing.header.arithmetic, "it")
        assert resumed_spec(standing, {}).resume


class RaggedFile(OneFile):
    """A Ragged file with every kind of field; what is opened can be read to its end."""

    name = "ragged"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "data.ragged"
        Ragged.write(self.path, [item(number) for number in range(12)])

    def read(self, chance: random.Random) -> None:
        self.change(self.path, chance, partial(forge_ragged, chance=chance), self.use)

    def use(self) -> None:
        """Open it, and read every item and a batch."""
        data = Ragged.open(self.path)
        assert len(data) < 2**20
        for number in range(len(data)):
            data[number]
        if len(data):
            data.gather([0, len(data) - 1], "list")


def item(number: int) -> dict[str, Any]:
    """Return an item of one field of every kind."""
    return {
        "fixed": torch.ones(2, 3),
        "length": torch.ones(number, 3, dtype=torch.bfloat16),
        "shape": torch.ones((2,) * (number % 3), dtype=torch.int64),
        "text": "x" * number,
        "bytes": b"abc",
    }


def forge_ragged(data: bytes, chance: random.Random) -> bytes:
    """Change bytes, tables or the schema of a Ragged file, mostly with checksums that are right again."""
    import struct
    import zlib

    _, _, _, _, size, at, length, *_ = struct.unpack_from("<8sII16sQQQII32s", data)
    head, body, schema = bytearray(data[:128]), bytearray(data[128:at]), data[at : at + length]
    what = chance.random()
    if what < 0.15:
        return change_bytes(data, chance)
    if what < 0.5:
        place = chance.randrange(max(0, len(body) - 2048), len(body) - 8) // 8 * 8
        struct.pack_into("<q", body, place, chance.choice((0, 1, -1, 2, 7, 2**31, 2**62, -(2**63), 100)))
    elif what < 0.95:
        tree = json.loads(schema)
        for _ in range(chance.choice((1, 1, 2))):
            change_tree(tree, chance)
        schema = json.dumps(tree).encode()
    else:
        struct.pack_into("<Q", head, chance.choice((32, 40, 48)), chance.choice((0, 1, 2**40, 2**63, size + 1)))
    if what < 0.95:
        struct.pack_into("<QQQI", head, 32, 128 + len(body) + len(schema), at, len(schema), zlib.crc32(schema))
    struct.pack_into("<I", head, 96, zlib.crc32(head[:96]))
    return bytes(head) + bytes(body) + schema


class Environment(Fuzzed):
    """Variables of launchers, as they were once, with a few of them changed."""

    name = "environment"
    texts: Final = (
        "",
        " ",
        "x",
        "-1",
        "0",
        "1",
        "3",
        "²",
        "٣",
        "9" * 5000,
        "1e3",
        "0x1",
        "n[1-99999999999]",
        "2(x9999999999)",
    )
    more: Final = (
        "n[1-2",
        "n]1[",
        "[1-2][1-3]" * 8,
        "a" * 5000,
        "\udcff",
        "2147483648",
        "localhost",
        "file:///x",
        "1,2,,3",
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.samples: list[dict[str, str]] = [
            json.loads(path.read_text()) for path in sorted(ENVIRONMENTS.glob("*.json"))
        ]

    def read(self, chance: random.Random) -> None:
        env = dict(chance.choice(self.samples))
        if chance.random() < 0.2:
            env |= chance.choice(self.samples)
        for _ in range(chance.choice((1, 1, 2, 4))):
            name = chance.choice([*env, "OMP_NUM_THREADS", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCKSTEP_LAUNCHER"])
            if chance.random() < 0.2:
                env.pop(name, None)
            else:
                env[name] = chance.choice((*self.texts, *self.more, chance.choice(list(env.values()) or [""])))
        choose_threads(env)
        place = detect(env)
        conflicts(env)
        assert 0 <= place.rank < place.size


class SiteProfile(OneFile):
    """A site profile; what is read makes a batch file of comments, directives and quoted words only."""

    name = "profile"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "site.toml"
        self.sources = [path.read_bytes() for path in sorted(SITES.glob("*.toml"))] + [PROFILE.encode()]

    def read(self, chance: random.Random) -> None:
        self.path.write_bytes(chance.choice(self.sources))
        self.change(self.path, chance, partial(change_toml, chance=chance), partial(self.use, chance))

    def use(self, chance: random.Random) -> None:
        """Fit a request to it and write the batch file."""
        profile = read_profile(self.path)
        name = chance.choice([*profile.partitions, None])
        kind = chance.choice(profile.partition(name)[1].nodes)
        request = Request(name="x", nodes=2, partition=name, gpus_per_node=min(kind.gpus, 2), gpu=kind.gpu)
        request, _ = fitted(request, profile)
        text = BatchFile(
            request=request,
            recipe="mlp",
            arguments=(),
            python="python",
            path=Path("/x"),
            runs=Path("/runs"),
            profile=profile,
        ).text()
        first, _, body = text.partition("\nset -eo pipefail\n")
        assert all(line.startswith("#") or not line for line in first.split("\n"))
        for line in body.partition("# The run folder")[0].splitlines():
            assert line.startswith(("#", "module ", "ml ", "export ")) or not line, line


PROFILE = """\
site = "Here"
source = "nowhere"
default_partition = "a"
gpu_option = "--gres=gpu:{type}:{count}"
modules = ["module load one/1.0"]
notes = ["first"]

[environment]
NCCL_DEBUG = "WARN"

[partitions.a]
most_nodes = 4
most_time = "2-00:00:00"
modules = ["ml two"]

[partitions.a.defaults]
cpus_per_task = 2
memory_mb = 1000
gpu = "A100"
gpus_per_node = 1
time = "30"

[[partitions.a.nodes]]
count = 3
cores = 8
memory_mb = 4000
gpu = "A100"
gpus = 4
fast_network = false
"""
"""One with every field."""
TOML_VALUES = (
    *("0", "-1", "1", "2", "99999999999999999999", "1e400", "nan", "inf", "true", '""', '"x"', "[]", "{}", "[[]]"),
    *("1979-05-27T07:32:00Z", '"a\\nb"', '"$(id)"', '"`id`"', "'\"'", '"\\u202e"', '["module load x; id"]', '["a"]'),
    *('"--gres={count}"', '"--x=$(id){count}"', '"1-1"', "{ a = 1 }", "[{ gpus = 2 }]", '"' + "x" * 600 + '"', "0x10"),
)


def change_toml(data: bytes, chance: random.Random) -> bytes:
    """Change bytes, or the value, the key or the whole of a line or two."""
    if chance.random() < 0.25:
        return change_bytes(data, chance)
    lines = data.decode().split("\n")
    for _ in range(chance.choice((1, 1, 2))):
        place = chance.randrange(len(lines))
        key, equals, value = lines[place].partition("=")
        what = chance.random()
        if what < 0.6 and equals:
            lines[place] = f"{key}= {chance.choice(TOML_VALUES)}"
        elif what < 0.7:
            lines[place] = f"{chance.choice(('new', 'site', 'a.b.c', 'nodes'))} {equals}{value}"
        elif what < 0.8:
            del lines[place]
        elif what < 0.9:
            lines.insert(place, chance.choice(lines))
        else:
            lines[place] = chance.choice(
                ("[", "[a]", "[[a]]", "[partitions]", "[partitions.b]", "x = " + "[" * 2000, "=")
            )
        lines = lines or [""]
    return "\n".join(lines).encode()


KINDS: dict[str, type[Fuzzed]] = {
    one.name: one for one in (Report, Checkpoint, Resume, RaggedFile, Environment, SiteProfile)
}
