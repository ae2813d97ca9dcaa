"""Site profiles, for `lockstep sbatch`."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from lockstep.cluster.batch_file import BatchFile
from lockstep.cluster.fitting import fitted
from lockstep.cluster.profiles import SITES, read_profile
from lockstep.cluster.request import Request
from tests.fuzz.kind import OneFile
from tests.fuzz.mutators import change_bytes


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
