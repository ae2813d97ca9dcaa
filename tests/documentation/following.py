"""Following a page: files are written, code is executed, lines are typed, and what they print is what is shown."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.world.addresses import free_port
from tests.commands import BIN, CommandLine, Marked
from tests.documentation.blocks import Block
from tests.documentation.printed import missing_lines
from tests.documentation.typed import ELSEWHERE, Typed, lines_of, typed

ROOT = Path(__file__).parents[2]
PRELUDE = (Path(__file__).parent / "names.py").read_text(encoding="utf-8")
AS = ("train.py", "recipe.py")
SECONDS = 300
PRINTED_ELSEWHERE = {"12-tensorflow.md": "tests/system/test_tensorflow.py"}
"""Pages with output of lines that are not typed here, and the test that types them and compares it."""
BUFFERED = {"PYTHONUNBUFFERED": ""}
"""As most shells have it: with it, lines that two ranks print at once can mix."""
EXIT_CODE = "exit code "
"""The title of a block whose line ends with that code; what it prints is what both streams have."""


@dataclass
class Follower:
    """A reader who does what a page says, in a folder that has a recipe of theirs."""

    folder: Path
    cli: CommandLine
    printed: str = ""
    """What the last block of lines printed."""
    names: dict[str, object] = field(default_factory=dict)
    """What the page's code defined."""
    steps: int = 2
    """How far the runs that are resumed have come."""
    changed: Callable[[Block, str], None] | None = None
    """Called with what a block of output should be, instead of comparing."""

    def __post_init__(self) -> None:
        for example in (ROOT / "examples").rglob("*.*"):
            shutil.copy(example, self.folder / example.name)
        shutil.copy(ROOT / "tests" / "user_scripts" / "step_function.py", self.folder / "my_script.py")
        for name in AS:
            shutil.copy(ROOT / "examples" / "my_recipe.py", self.folder / name)

    def follow(self, block: Block) -> None:
        """Do what one block says."""
        if block.language == "python" and "/" in block.title:
            _is_excerpt(block)
        elif block.language == "python" and block.title:
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._execute(block)
        elif block.language in ("sh", "bash"):
            self.printed = "".join(self._type(line, block) for line in lines_of(block.text))
        elif block.language == "text":
            self._compare(block)
        elif block.language == "diff":
            self._difference(block)
        elif block.language == "message":
            _is_quoted(block)
        elif block.language == "json":
            _has_known_fields(block)
        elif block.language == "diagram":
            pass  # it says nothing that could be run
        elif block.title:
            assert (ROOT / block.title).read_text(encoding="utf-8") == block.text, (
                f"{block.where}: not the file {block.title}"
            )
        else:
            raise AssertionError(f"{block.where}: a block of {block.language or 'no language'} that nothing runs")

    def _execute(self, block: Block) -> None:
        code = block.text.replace("Recipe(...,", "Recipe(**fields,")
        if not self.names:
            self.names["__name__"] = "page"
            exec(compile(PRELUDE, "names.py", "exec"), self.names)
        with (
            one_rank(self.folder, joined="dist.group.WORLD" in code, alone="init_process_group(" in code),
            contextlib.chdir(self.folder),
        ):
            exec(compile("\n" * block.line + code, block.where, "exec"), self.names)

    def _type(self, line: str, block: Block) -> str:
        command = typed(line, self.folder, self._run, self._resumed())
        if command.program in ELSEWHERE:
            check_elsewhere(command, block)
            return ""
        if command.program in ("lockstep", "torchrun") and command.arguments and needs_a_cluster(command):
            return ""
        if command.program == "lockstep" and command.arguments[:1] == ("selftest",):
            return ""  # a minute; tests/multiprocess/test_selftest.py runs it
        if command.program == "lockstep" and command.arguments[:1] == ("bench",):
            return (
                ""  # tests/contract/test_benchmarks.py runs the quick form of each, tests/unit/test_docs.py its options
            )
        if command.program == "lockstep":
            if command.arguments[:1] in (("runs",), ("clean",)):
                self._run()
            apart = command.arguments[:1] == ("launch",) or "torchrun" in command.arguments
            done = self.cli.apart(*command.arguments, env=BUFFERED) if apart else self.cli(*command.arguments)
            expected = int(block.title.removeprefix(EXIT_CODE)) if block.title.startswith(EXIT_CODE) else 0
            assert done.code == expected, f"{block.where}: {line}\n{done.text}"
            return done.text if expected else done.out
        assert command.program in ("python", "torchrun", "cat", "ls"), f"{block.where}: no rule for {line!r}"
        program = {"python": sys.executable, "torchrun": str(BIN / "torchrun")}.get(command.program, command.program)
        ran = Marked({"OMP_NUM_THREADS": "1", **BUFFERED}).run([program, *command.arguments], self.folder, SECONDS)
        assert ran.code == 0, f"{block.where}: {line}\n{ran.text}"
        return ran.out

    def _resumed(self) -> int:
        """Return how far the next `--resume` goes: a step further each time."""
        self.steps += 1
        return self.steps

    def _run(self) -> str:
        """Return the newest run of this reader's folder; one is made where a page speaks of a run from before."""
        runs = [path for path in self.folder.glob("runs/*/") if list(path.rglob("run.json"))]
        if not runs:
            before = self.folder / "runs" / "before"
            done = self.cli("run", "train.py", "--steps", "2", "--checkpoint-every", "1", "--out", str(before))
            assert done.code == 0, done.text
            runs = [before]
        newest = max(runs, key=lambda path: path.stat().st_mtime)
        return str(newest.relative_to(self.folder))

    def _compare(self, block: Block) -> None:
        if block.page.name in PRINTED_ELSEWHERE and not self.printed:
            test = PRINTED_ELSEWHERE[block.page.name]
            assert block.page.name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name {block.page}"
            return
        if self.changed is not None:
            self.changed(block, self.printed)
            return
        lacking = missing_lines(block.text, self.printed)
        assert lacking == [], (
            f"{block.where}: not printed:\n" + "\n".join(lacking) + f"\nwhat was printed:\n{self.printed}"
        )

    def _difference(self, block: Block) -> None:
        before, after = block.title.split()
        old, new = ((ROOT / name).read_text(encoding="utf-8").splitlines() for name in (before, after))
        made = [
            line for line in difflib.unified_diff(old, new, lineterm="", n=0) if not re.match(r"(---|\+\+\+|@@)", line)
        ]
        assert block.text.splitlines() == made, f"{block.where}: the difference is\n" + "\n".join(made)


@contextlib.contextmanager
def one_rank(folder: Path, *, joined: bool, alone: bool) -> Iterator[None]:
    """Let code that makes a process group be the only rank of one."""
    import torch.distributed as dist

    store = folder / "store"
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    before = {name: os.environ.get(name) for name in place}
    sys.path.insert(0, str(folder))
    if joined:
        dist.init_process_group("shm", init_method=f"file://{store}", rank=0, world_size=1)
    elif alone:
        os.environ.update(place)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):  # another page has another file of that name
            if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]
        if dist.is_initialized():
            dist.destroy_process_group()
        store.unlink(missing_ok=True)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _is_excerpt(block: Block) -> None:
    """Hold every line of a block to be in the file of its title, in this order."""
    lines = iter([line.strip() for line in (ROOT / block.title).read_text(encoding="utf-8").splitlines()])
    for line in block.text.splitlines():
        if line.strip() not in ("", "..."):
            assert line.strip() in lines, f"{block.where}: {block.title} has no line {line.strip()!r} here"


def _is_quoted(block: Block) -> None:
    """Hold the words of the title to be in the block, and in the source that prints them."""
    words = " ".join(block.title.split())
    assert words in " ".join(block.text.split()), f"{block.where}: the block does not say {words!r}"
    source = (ROOT / "src" / "lockstep").rglob("*.py")
    joined = re.compile(r'"\s*\n\s*f?"')
    assert any(words in " ".join(joined.sub("", file.read_text(encoding="utf-8")).split()) for file in source), (
        f"{block.where}: nothing in the source says {words!r} any more"
    )


def _has_known_fields(block: Block) -> None:
    """Hold the fields of a record to be those of the schema."""
    schema = "".join(file.read_text() for file in (ROOT / "src/lockstep/train/schema").glob("*.py"))
    for name in json.loads(block.text):
        assert re.search(rf"^    {name}: ", schema, re.MULTILINE), f"{block.where}: the schema has no field {name}"


def needs_a_cluster(command: Typed) -> bool:
    """Say whether a line needs a cluster; tests/system/test_launcher_pages.py and test_batch_jobs.py have real ones."""
    if command.program == "torchrun":
        return "--nnodes" in command.arguments
    if "tensorflow" in command.arguments:  # an environment of its own: tests/system/test_tensorflow.py
        return True
    by_hand = "--rank" in command.arguments  # each line waits for the others
    by_launcher = by_hand or any(word in ("srun", "mpirun") for word in command.arguments)
    by_slurm = command.arguments[0] in ("sbatch", "jobs", "stats", "requeue") and "--dry-run" not in command.arguments
    return by_launcher or by_slurm


def check_elsewhere(command: Typed, block: Block) -> None:
    """Hold what can be held of a line that is not typed here."""
    if command.program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        wanted = [word for word in command.arguments if "=" not in word and not word.startswith("-")]
        assert set(wanted) <= set(targets), f"{block.where}: no such target: {command.original}"
    if command.program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = {name for word in command.arguments for name in re.findall(r"\[([\w,-]+)\]", word)}
        known = set(project["optional-dependencies"])
        assert {part for one in extras for part in one.split(",")} <= known, f"{block.where}: {command.original}"
