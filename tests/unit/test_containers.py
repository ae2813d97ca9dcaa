"""The container files are well formed and have the same steps; `scripts/soak-container` runs those outside one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKER = (ROOT / "containers" / "Dockerfile").read_text()
APPTAINER = (ROOT / "containers" / "lockstep.def").read_text()
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT"}
SECTIONS = {"files", "post", "environment", "runscript"}


def docker_lines() -> list[tuple[str, str]]:
    lines = [line for line in DOCKER.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def sections() -> dict[str, list[str]]:
    parts = re.split(r"^%(\w+)\n", APPTAINER, flags=re.MULTILINE)
    return {
        name: [line.strip() for line in text.splitlines() if line.strip()]
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def steps() -> list[str]:
    """Return the lines that both run."""
    return [text for instruction, text in docker_lines() if instruction == "RUN"]


def test_dockerfile() -> None:
    instructions = [name for name, _ in docker_lines()]
    assert instructions[0] == "FROM"
    assert set(instructions) == INSTRUCTIONS
    images = [text for name, text in docker_lines() if name == "FROM"]
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+", image) and not image.endswith(":latest") for image in images), (
        "a fixed tag"
    )
    assert instructions.index("USER") > max(at for at, name in enumerate(instructions) if name == "RUN"), "not as root"
    (entry,) = (text for name, text in docker_lines() if name == "ENTRYPOINT")
    assert entry == '["lockstep"]', "the form that passes signals on"


def test_apptainer_has_the_same_steps_and_image() -> None:
    assert set(sections()) == SECTIONS
    assert sections()["post"] == ["cd /opt/lockstep", *steps()]
    (image,) = re.findall(r"^From: (\S+)$", APPTAINER, re.MULTILINE)
    assert ("FROM", image) in docker_lines()
    path = dict(docker_lines())["ENV"]
    assert sections()["environment"] == [f"export {path}"]


def test_the_steps_are_those_of_this_environment() -> None:
    """What is installed is this package with the versions of constraints.txt, as `make` installs it."""
    venv, install, check = steps()
    assert venv == "python3 -m venv /opt/env"
    assert install.split()[-3:] == ["--constraint", "constraints.txt", "."]
    assert check == "/opt/env/bin/lockstep doctor"
    makefile = (ROOT / "Makefile").read_text()
    assert "-m pip install" in makefile
    assert "--constraint constraints.txt" in makefile
