"""Variables that launchers set."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

from lockstep.world.detect import conflicts, detect
from lockstep.world.resources import choose_threads
from tests.fuzz.kind import Fuzzed

ENVIRONMENTS = Path(__file__).parents[1] / "unit" / "environments"


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
