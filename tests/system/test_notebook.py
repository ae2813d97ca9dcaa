"""The example notebook: run by a real kernel, looked at in JupyterLab by a real browser; and workers of Slurm."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from lockstep.world.addresses import free_port
from tests.commands import Marked
from tests.services import require
from tests.system.browser import Browser, Programs
from tests.system.slurm import SlurmCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
TOKEN = "only-for-this-test"


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its outputs, in a folder that knows nothing of this repository."""
    folder = tmp_path_factory.mktemp("notebooks")
    notebook = nbformat.read(EXAMPLE, as_version=4)  # type: ignore[no-untyped-call]
    # A kernel takes over whether Ctrl-C is ignored, as it is where tests run in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        NotebookClient(notebook, timeout=180, kernel_name="python3", resources=_resources(folder)).execute()
    finally:
        signal.signal(signal.SIGINT, before)
    path = folder / EXAMPLE.name
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    return path


def _resources(folder: Path) -> dict[str, Any]:
    return {"metadata": {"path": str(folder)}}


def outputs(path: Path) -> dict[str, str]:
    """Return what each cell shows as text, by the last line of the cell."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    shown = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [output.get("text") or output["data"].get("text/plain", "") for output in cell.outputs]
            shown[cell.source.splitlines()[-1]] = "\n".join(texts)
    return shown


def test_the_example_says_what_it_promises(executed: Path) -> None:
    shown = outputs(executed)
    assert re.search(r"Net: step 16/16, loss [0-9.]+; evaluation: accuracy [01]\.", shown["trained"])
    assert "Net with ddp on 2 workers by spawn, 4 lanes" in shown["trained"]
    assert shown["alone.digest == trained.digest"].endswith("True")
    assert shown["lockstep.notebook.run(shares, workers=2)"] == "rank 0 of 2: the sum is 3\n\ntensor([3.])"
    assert "('ddp', 'same bits')" in shown['[(row["name"], row["parity"]) for row in compared.rows]']


@contextmanager
def jupyterlab(folder: Path, home: Path) -> Iterator[str]:
    """Start JupyterLab on the loopback interface; yield its address."""
    port = free_port()
    marked = Marked({name: str(home / name) for name in ("HOME", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR")})
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}", "--ServerApp.port_retries=0"]
    command += ["--LabApp.collaborative=False", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    signed = [sys.executable, "-m", "jupyter", "trust", str(folder / EXAMPLE.name)]
    assert marked.run(signed, folder).code == 0, "else JupyterLab shows no HTML of outputs that it did not make"
    with open(home / "jupyterlab.txt", "wb") as log:
        server = subprocess.Popen(command, env=marked.env, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api?token={TOKEN}", server, home / "jupyterlab.txt")
        yield address
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
    assert marked.survivors() == []


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)


FOUND = """
const cells = [...document.querySelectorAll('.jp-OutputArea-output')];
const frame = document.querySelector('iframe[title=report]');
const table = [...document.querySelectorAll('.jp-OutputArea-output table')].map(t => t.innerText).join('\\n');
const bars = [...document.querySelectorAll('.jp-OutputArea-output progress')].map(b => b.value / b.max);
return frame ? [table, bars, frame.sandbox.value, frame.getBoundingClientRect().height] : null;
"""


def test_the_example_in_jupyterlab(executed: Path, tmp_path: Path) -> None:
    programs = Programs(chromium=require("chromium"), driver=require("chromedriver"))
    for name in ("HOME", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        (tmp_path / name).mkdir()
    with jupyterlab(executed.parent, tmp_path) as address, Browser(programs, tmp_path / "profile") as browser:
        browser.resize(1280, 4000)
        browser.driver.get(f"{address}/doc/tree/{executed.name}?token={TOKEN}")
        deadline = time.monotonic() + 90
        while (found := browser.run(FOUND)) is None:
            assert time.monotonic() < deadline, browser.run("return document.body.innerText")
            time.sleep(0.3)
        table, bars, sandbox, height = found
        assert {"single", "ddp", "torch-ddp"} <= set(table.split())
        assert bars == [1, 1], "both runs are at their end"
        assert (sandbox, height) == ("allow-scripts", 642)
        frame = browser.driver.find_element("css selector", "iframe[title=report]")
        browser.driver.switch_to.frame(frame)
        assert "Recommendation" in browser.run("return document.body.innerText")
        assert browser.run("return document.querySelectorAll('svg').length") > 3, "the charts are there"
        browser.driver.switch_to.default_content()
        if picture := os.environ.get("LOCKSTEP_PICTURE"):  # scripts/notebook-picture
            _take(browser, Path(picture))


def _take(browser: Browser, path: Path) -> None:
    browser.resize(1180, 1000)
    browser.run("[...document.querySelectorAll('button')].filter(b => b.innerText == 'No').forEach(b => b.click())")
    browser.run("[...document.querySelectorAll('.jp-OutputArea-output table')].at(-1).scrollIntoView({block: 'start'})")
    time.sleep(2)
    browser.driver.save_screenshot(str(path))


SCRIPT = """
import json, os, sys
import torch
import lockstep

print("the kernel is in a step:", "SLURM_STEP_ID" in os.environ)

def where():
    with lockstep.join() as world:
        both = torch.tensor([1.0 if os.environ["SLURMD_NODENAME"] == "n1" else 10.0])
        torch.distributed.all_reduce(both)
        return world.launcher, world.size, int(both)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, number):
        return torch.full((4,), float(number)), torch.tensor(float(number))

def loss(model, batch):
    return (model(batch[0])[:, 0] - batch[1]).square().mean()

recipe = lockstep.Recipe(
    model=lambda: torch.nn.Linear(4, 1), data=Data, loss=loss, optimizer=lambda ps: torch.optim.SGD(ps, lr=1e-4),
    global_batch=8, lanes=2,
)
print(lockstep.notebook.run(where, workers=2, nodes=2, launcher="srun"))
if "SLURM_STEP_ID" in os.environ:
    sys.exit(0)
several = lockstep.notebook.run(recipe, workers=2, nodes=2, launcher="srun")
alone = lockstep.notebook.run(recipe, workers=1)
left = [name for name in os.listdir("runs") if "notebook" in name]
print("same bits:", several.digest == alone.digest, "left:", left)
"""


def test_inside_an_allocation_srun_starts_the_workers(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Once from the allocation itself, as a batch job or a hub starts a kernel, once from a step of it."""
    script = tmp_path / "cells.py"
    script.write_text(SCRIPT)
    for inside in ([], ["srun", "--nodes=1", "--ntasks=1"]):
        command = ["salloc", "--nodes=2", "--ntasks=2", f"--chdir={tmp_path}", *inside, sys.executable, str(script)]
        done = slurm.run(*command, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"the kernel is in a step: {bool(inside)}" in done.stdout
        assert "('srun', 2, 11)" in done.stdout
        assert inside or "same bits: True left: []" in done.stdout
