"""Run folders, for `--resume`."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs

from lockstep.launch.interruption import interruption
from lockstep.runs.listing import listed
from lockstep.train.checkpoint_folder import path_of
from lockstep.train.checkpoint_header import refuse_other
from lockstep.train.records import write_document
from lockstep.train.resume import read_standing, resumed_spec
from tests.fuzz.checkpoint_files import forge, save_checkpoint
from tests.fuzz.kind import OneFile
from tests.fuzz.mutators import change_json
from tests.unit.report.folders import make_run
from tests.unit.report.values import setup


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
