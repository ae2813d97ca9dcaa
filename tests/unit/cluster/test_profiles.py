"""Site profiles: what is shipped, what is read, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.cluster.profiles import Profile, load_profile, read_profile, shipped_profiles
from lockstep.errors import BadInput

GOOD = """\
site = "Here"
default_partition = "a"
modules = ["module load one/1.0"]

[partitions.a]
modules = ["ml two"]

[[partitions.a.nodes]]
cores = 4
gpus = 2

[[partitions.a.nodes]]
cores = 8
gpu = "A100"
gpus = 4

[partitions.b]
[[partitions.b.nodes]]
memory_mb = 1000
"""


def read(text: str, folder: Path) -> Profile:
    path = folder / "site.toml"
    path.write_text(text)
    return read_profile(path)


def test_a_profile_is_read_whole(tmp_path: Path) -> None:
    profile = read(GOOD, tmp_path)
    assert profile.partition(None)[0] == "a"
    assert [kind.cores for kind in profile.partitions["a"].nodes] == [4, 8]
    assert profile.module_lines() == ("module load one/1.0", "ml two")
    assert profile.module_lines("b") == ("module load one/1.0",)
    assert load_profile(str(tmp_path / "site.toml")) == profile


def test_the_shipped_profiles_have_the_numbers_of_the_documents() -> None:
    assert shipped_profiles() == ["alvis", "zih"]
    zih = load_profile("zih")
    for name, nodes, cores, memory, gpus, cpus in (
        ("ml", 30, 44, 250000, 6, 7),
        ("gpu2", 59, 24, 60000, 4, 6),
        ("alpha", 32, 48, 990000, 8, 6),
    ):
        partition = zih.partitions[name]
        (kind,) = partition.nodes
        assert (kind.count, kind.cores, kind.memory_mb, kind.gpus) == (nodes, cores, memory, gpus)
        assert partition.defaults.cpus_per_task == cpus
        assert cpus * gpus <= cores < (cpus + 1) * gpus, "a task per GPU fills the node"
        assert partition.memory_must_be_asked
    alvis = load_profile("alvis").partitions["alvis"]
    assert {kind.gpu for kind in alvis.nodes if not kind.fast_network} == {"A40"}
    assert {kind.gpu: kind.count for kind in alvis.nodes} == {
        "T4": None,
        "V100": None,
        "A40": 85,
        "A100": 75,
        "A100fat": 8,
    }


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("cores = 8", 'cores = "8"', 13, 'nodes, entry 2, cores is "8", expected a whole number or null'),
        ("cores = 8", "cores = 0", 13, "cores is 0, expected a whole number of at least 1"),
        ("cores = 4", "core = 4", 9, "core is unknown"),
        ("gpus = 2", "gpus = 2\ngpus = 3", 11, "not TOML"),
        ('default_partition = "a"', 'default_partition = "aa"', 2, "there is no partition 'aa'; did you mean 'a'?"),
        ('site = "Here"', "", 1, "site is missing"),
        ('site = "Here"', 'sites = "Here"\nsite = "x"', 1, "sites is unknown; did you mean 'site'?"),
        ("ml two", "ml two; rm -rf ~", 6, "modules, entry 1"),
        ("ml two", "ml two\\nrm", 6, "modules, entry 1"),
        ("ml two", "ml two\\n", 6, "modules, entry 1"),
        ('"Here"', '"Here\\nrm -rf ~"', 1, "site is"),
        ("[partitions.b]\n[[partitions.b.nodes]]\nmemory_mb = 1000", "[partitions.b]", 17, "nodes is missing"),
        ("memory_mb = 1000", "memory_mb = 10_000_000_000_000", 19, "memory_mb is"),
        ('gpu = "A100"', 'gpu = "A100 --x"', 14, "gpu is"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    with pytest.raises(BadInput) as refusal:
        read(GOOD.replace(old, new), tmp_path)
    text = str(refusal.value)
    assert f"site.toml, line {line}: " in text, text
    assert words in text
    assert len(text.splitlines()) == 1


def test_a_site_that_tells_gpus_by_type_needs_the_types(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"line 9: nodes with GPUs need their type"):
        read('gpu_option = "--gpus-per-node={type}:{count}"\n' + GOOD, tmp_path)


def test_files_that_are_no_profiles(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    with pytest.raises(BadInput, match="does not exist"):
        read_profile(path)
    for content, words in (
        ("x = " + "[" * 30_000, "cannot be read|not TOML"),
        ("a." * 30_000 + "b = 1", "dots"),
        ("x = " + "[" * 20 + "]" * 20, "nested too deeply"),
        ("x = " + "9" * 5000, "cannot be read"),
        ("#" * 100_000, "100,000 bytes"),
    ):
        path.write_text(content)
        with pytest.raises(BadInput, match=words):
            read_profile(path)
    path.write_bytes(b'site = "\xff"')
    with pytest.raises(BadInput, match="line 1: it is not UTF-8"):
        read_profile(path)


def test_names_that_are_not_known() -> None:
    with pytest.raises(BadInput, match="did you mean 'alvis'"):
        load_profile("alvi")
    with pytest.raises(BadInput, match="there are: alvis, zih"):
        load_profile("nowhere")
    with pytest.raises(BadInput, match="no such partition; did you mean 'gpu2'"):
        load_profile("zih").partition("gpu")
    with pytest.raises(BadInput, match="several partitions: give --partition"):
        load_profile("zih").partition(None)
