"""Site profiles: what a cluster has, as a small TOML file that is shipped (`sites/`) or comes from anywhere.

Nothing in a profile becomes shell code: text is one printable line, module lines are calls of `module` or `ml` with
plain words, and a batch file quotes the rest. Modules and variables choose a job's software: `--dry-run` shows them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from lockstep.cluster.toml_reading import Fields, read_toml
from lockstep.errors import BadInput, nearest

SITES = Path(__file__).parent / "sites"
"""The profiles that are shipped."""

Text = Annotated[str, Meta(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]*\Z")]
"""One line, in the order in which it is read."""
Name = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")]
ModuleLine = Annotated[str, Meta(max_length=500, pattern=r"^(module|ml)( +[A-Za-z0-9_./+=:,@-]+)+\Z")]
GPU_OPTION = r"^--(gres=gpu:|gpus-per-node=)(\{type\}:)?\{count\}\Z"
GpuOption = Annotated[str, Meta(max_length=64, pattern=GPU_OPTION)]
Variable = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
TimeText = Annotated[str, Meta(max_length=32, pattern=r"^([0-9]{1,5}-)?[0-9]{1,6}(:[0-9]{1,2}){0,2}\Z")]
"""As Slurm reads it: minutes, minutes:seconds, hours:minutes:seconds, days-hours:minutes:seconds."""
Number = Annotated[int, Meta(ge=1, le=10**6)]
Megabytes = Annotated[int, Meta(ge=1, le=10**9)]


class NodeKind(Fields, frozen=True, kw_only=True):
    """Nodes of a partition that are alike: `[[partitions.NAME.nodes]]`. What is left out is not checked."""

    count: Number | None = None
    """How many there are."""
    cores: Number | None = None
    """CPUs that a job can have on one."""
    memory_mb: Megabytes | None = None
    """The most that `--mem` can ask for on one."""
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 0
    """GPUs of one."""
    gpu: Name | None = None
    """Their type, as `--gpus-per-node=TYPE:N` names it; left out where the site has one type per partition."""
    fast_network: bool = True
    """Whether it is on the network for jobs of several nodes (InfiniBand and its like)."""


class Defaults(Fields, frozen=True, kw_only=True):
    """What a batch file asks for where nothing is typed: `[partitions.NAME.defaults]`."""

    cpus_per_task: Number | None = None
    """`--cpus-per-task`."""
    memory_mb: Megabytes | None = None
    """`--mem`."""
    gpus_per_node: Annotated[int, Meta(ge=0, le=1024)] | None = None
    """GPUs of each node."""
    gpu: Name | None = None
    """Their type."""
    time: TimeText | None = None
    """`--time`."""


class Partition(Fields, frozen=True, kw_only=True):
    """One partition: `[partitions.NAME]`."""

    nodes: Annotated[tuple[NodeKind, ...], Meta(min_length=1, max_length=64)]
    """Its kinds of nodes."""
    most_nodes: Number | None = None
    """Nodes that one job may have, where that is less than there are."""
    most_time: TimeText | None = None
    """The longest `--time`."""
    memory_must_be_asked: bool = False
    """Whether a job that does not ask for memory gets so little that it will not run."""
    defaults: Defaults = Defaults()
    """What holds where nothing is typed."""
    modules: tuple[ModuleLine, ...] = ()
    """Module lines of this partition, after those of the site."""
    notes: tuple[Text, ...] = ()
    """What a user should know; they come into the batch file as comments."""


class Profile(Fields, frozen=True, kw_only=True):
    """A site."""

    site: Text
    """What it is and who runs it."""
    source: Text = ""
    """Where its numbers are from."""
    default_partition: Name | None = None
    """The partition of a job that names none."""
    gpu_option: GpuOption = "--gpus-per-node={count}"
    """How GPUs are asked for, e.g. `--gpus-per-node={type}:{count}` or `--gres=gpu:{count}`."""
    modules: Annotated[tuple[ModuleLine, ...], Meta(max_length=64)] = ()
    """Module lines of every job."""
    environment: Annotated[dict[Variable, Text], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    """Variables of every job."""
    notes: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    """What a user should know."""
    partitions: Annotated[dict[Name, Partition], Meta(min_length=1, max_length=256)]
    """By name."""

    def partition(self, name: str | None) -> tuple[str, Partition]:
        """Return a partition by name, or the site's default; refuse one that there is not."""
        known = list(self.partitions)
        if name is None:
            if self.default_partition is None and len(known) > 1:
                raise BadInput(f"{self.site} has several partitions: give --partition, one of {', '.join(known)}")
            name = self.default_partition or known[0]
        if name not in self.partitions:
            raise BadInput(f"--partition {name}: {self.site} has no such partition{nearest(name, known)}")
        return name, self.partitions[name]

    def module_lines(self, partition: str | None = None) -> tuple[str, ...]:
        """Return the module lines of a job: those of the site, then those of the partition (None: the default one)."""
        if partition is None and self.default_partition is None and len(self.partitions) > 1:
            return self.modules
        return (*self.modules, *self.partition(partition)[1].modules)


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that are shipped."""
    return sorted(path.stem for path in SITES.glob("*.toml"))


def load_profile(typed: str) -> Profile:
    """Return the profile of this name, or in this file; refuse what is none."""
    path = Path(typed)
    if path.suffix != ".toml" and "/" not in typed:
        known = shipped_profiles()
        if typed not in known:
            raise BadInput(
                f"--profile {typed}: no profile of that name is shipped{nearest(typed, known)}; or give a file"
            )
        path = SITES / f"{typed}.toml"
    return read_profile(path)


def read_profile(path: Path) -> Profile:
    """Read a profile from a file; refuse one that is damaged or contradicts itself, with its line."""
    text = read_toml(path)
    profile = text.convert(Profile)
    default = profile.default_partition
    if default is not None and default not in profile.partitions:
        known = list(profile.partitions)
        raise text.refusal(["default_partition"], f"there is no partition {default!r}{nearest(default, known)}")
    for name, partition in profile.partitions.items():
        types = [kind.gpu for kind in partition.nodes]
        place = ["partitions", name]
        for number, kind in enumerate(partition.nodes):
            if "{type}" in profile.gpu_option and kind.gpus and kind.gpu is None:
                missing = "nodes with GPUs need their type, `gpu`, because gpu_option has {type}"
                raise text.refusal([*place, "nodes", number], missing)
        if (asked := partition.defaults.gpu) is not None and asked not in types:
            known = [one for one in types if one is not None]
            raise text.refusal(
                [*place, "defaults", "gpu"], f"no nodes have GPUs of type {asked!r}{nearest(asked, known)}"
            )
    return profile
