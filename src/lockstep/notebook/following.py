"""How far a run is, from the records that its ranks write; the kernel looks while it waits."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import LockstepError
from lockstep.train.schema.rank_jsonl import EvaluationLine, HeaderLine, RankLine, StepLine, rank_path, read_rank_from
from lockstep.train.schema.run_json import NAME as RUN
from lockstep.train.schema.run_json import read_setup

if TYPE_CHECKING:
    from types import TracebackType

    from lockstep.notebook.screen import Screen
    from lockstep.train.progress import Progress


class Following:
    """One run, looked at again and again; a context manager that ends what it shows."""

    def __init__(self, folder: Path, screen: Screen, *, resumed: bool) -> None:
        self._folder, self._screen = folder, screen
        self._old = _created(folder) if resumed else None
        self._progress: Progress | None = None
        self._ranks: list[_Rank] = []
        self._shown = -1
        self._stack = ExitStack()

    def __enter__(self) -> Following:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def look(self) -> None:
        """Read what is new, and show it. Records that cannot be read are left to whoever reads the whole run."""
        try:
            if self._progress is None:
                self._begin()
            if self._progress is not None:
                self._go_on(self._progress)
        except LockstepError:
            return

    def _begin(self) -> None:
        created = _created(self._folder)
        if created is None or created == self._old:
            return
        setup = read_setup(self._folder)
        first = setup.resumed[-1].step if setup.resumed else 0
        progress = self._screen.progress(setup.plan.steps, label=setup.recipe.name, first=first)
        self._progress = self._stack.enter_context(progress)
        self._ranks = [_Rank(rank_path(self._folder, rank)) for rank in range(setup.spec.workers)]

    def _go_on(self, progress: Progress) -> None:
        for rank in self._ranks:
            rank.read()
        counted = [rank for rank in self._ranks if rank.counts]
        if not counted:
            return
        done = min(max(rank.steps, default=-1) for rank in counted)
        if done > self._shown:
            self._shown = done
            lines = [rank.steps[done] for rank in counted if done in rank.steps]
            weight = sum(line.weight for line in lines)
            progress.step(done + 1, sum(line.loss * line.weight for line in lines) / weight if weight else 0.0)
        for rank in self._ranks:
            rank.forget(self._shown)
        for line in self._ranks[0].take_evaluations(self._shown + 1):
            progress.evaluated({name: value for name, value in line.metrics.items() if value is not None})


class _Rank:
    """What one rank has written so far."""

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, 0
        self.counts = False
        """Whether its loss counts: the stages of a replica work on the same lanes."""
        self.steps: dict[int, StepLine] = {}
        self._evaluations: list[EvaluationLine] = []

    def read(self) -> None:
        lines: list[RankLine]
        lines, self._next = read_rank_from(self._path, self._next)
        for line in lines:
            if isinstance(line, HeaderLine):
                self.counts = line.stage == 0
            elif isinstance(line, StepLine):
                self.steps[line.step] = line
            elif isinstance(line, EvaluationLine):
                self._evaluations.append(line)

    def forget(self, before: int) -> None:
        self.steps = {step: line for step, line in self.steps.items() if step >= before}

    def take_evaluations(self, done: int) -> list[EvaluationLine]:
        ready = [line for line in self._evaluations if line.steps <= done]
        self._evaluations = [line for line in self._evaluations if line.steps > done]
        return ready


def _created(folder: Path) -> int | None:
    """Return when run.json was written; None if it is not there."""
    try:
        return (folder / RUN).stat().st_mtime_ns
    except OSError:
        return None
