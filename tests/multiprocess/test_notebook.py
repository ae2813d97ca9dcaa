"""`lockstep.notebook.run` in a real kernel: one for all of these, as a user has it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import Marked
from tests.kernels import Kernel

# Everything is defined in cells, after torch was used. The data set is read by processes of a DataLoader's own that are
# started by spawn: they import what they need by name.
CELLS = """
import os, threading, time
import torch
from torch import nn
import lockstep
from lockstep import notebook

X = torch.randn(512, 700, generator=torch.Generator().manual_seed(0))
assert X.untyped_storage().nbytes() > 1 << 20
(X @ X.T).sum()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)
    def __getitem__(self, number):
        return X[number], X[number, 0]

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(700, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))

def loss(model, batch):
    return (model(batch[0])[:, 0] - batch[1]).square().mean()

def loader():
    return torch.utils.data.DataLoader(Data(), batch_size=64, num_workers=1, multiprocessing_context="spawn")

def make(**changes):
    fields = dict(model=Net, data=Data, loss=loss, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9),
                  evaluate=lambda model, batch: {"error": loss(model, batch)}, global_batch=64, lanes=4, epochs=2)
    return lockstep.Recipe(**{**fields, **changes})
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel")) as started:
        shown = started.run(CELLS)
        assert not shown.error, shown.error
        yield started


def ours(kernel: Kernel) -> list[str]:
    """Return the processes that the kernel started and that still run; the kernel itself is not one."""
    deadline = time.monotonic() + 20
    while left := [line for line in kernel.marked.survivors(seconds=0) if "ipykernel" not in line]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def test_a_recipe_of_cells_is_trained_and_comes_back(kernel: Kernel) -> None:
    shown = kernel.run("""
trained = notebook.run(make(), workers=4)
assert len(trained.losses) == 16 and trained.losses[-1] < trained.losses[0]
assert trained.evaluations[-1] == (16, trained.metrics)
model = trained.model.eval()
here = loss(model, (X, X[:, 0])).item()
assert abs(here - trained.metrics["error"]) < 1e-5, (here, trained.metrics)
assert all(parameter.device.type == "cpu" for parameter in model.parameters())
notebook.run(make(data=loader, evaluate=None), workers=2, steps=2)
trained
""")
    assert not shown.error, shown.error
    assert "4 workers on " in shown.err, "more workers than cores are warned of"
    assert shown.result.startswith("Net with ddp on 4 workers by spawn, 4 lanes")
    assert any(re.fullmatch(r"Net: step 16/16, loss [0-9.]+; evaluation: error [0-9.]+", line) for line in shown.lines)
    bars = [re.findall(r'value="(\d+)" max="(\d+)"', markup) for markup in shown.html]
    assert bars == [[("16", "16")], [("2", "2")]]
    assert ours(kernel) == []


def test_a_function_joins_by_itself_and_rank_0_returns(kernel: Kernel) -> None:
    shown = kernel.run("""
def shares(scale=10.0):
    with lockstep.join() as world:
        print("from rank", world.rank)
        mine = torch.ones(3) * (world.rank + 1)
        torch.distributed.all_reduce(mine)
        return {"sum": mine * scale, "pid": os.getpid()}
value = notebook.run(shares, workers=2)
assert value["pid"] != os.getpid()
value["sum"]
""")
    assert not shown.error, shown.error
    assert shown.result == "tensor([30., 30., 30.])"
    assert shown.out == "from rank 0\n", "the other ranks are shown only if one fails"


def test_the_first_error_is_one_exception_with_the_lines_of_the_cell(kernel: Kernel) -> None:
    shown = kernel.run("""
def fails():
    with lockstep.join() as world:
        print("rank", world.rank, "was here")
        if world.rank == 1:
            raise KeyError("only rank 1")  # in a cell
        torch.distributed.barrier()
notebook.run(fails, workers=2)
""")
    assert shown.kind == "RunFailed"
    assert re.search(r"RunFailed: rank 1 on \S+ failed:\nTraceback", shown.error)
    assert 'raise KeyError("only rank 1")  # in a cell' in shown.error
    assert shown.error.count("Traceback") == 1
    assert "rank 0 was here\n" in shown.out
    assert "--- output of rank 1\nrank 1 was here\n" in shown.err
    assert ours(kernel) == []


def test_a_failing_step_names_rank_and_step(kernel: Kernel) -> None:
    shown = kernel.run("""
def breaks(model, batch):
    if (batch[0][:, 1] == X[200, 1]).any():
        raise ValueError("sample 200")
    return loss(model, batch)
def indirectly():
    return make(loss=breaks)  # nothing here says that it makes a recipe: the workers find out
try:
    notebook.run(indirectly, workers=2)
except lockstep.errors.RunFailed as error:
    print(error)
""")
    assert not shown.error, shown.error
    assert re.match(r"rank \d on \S+ failed at step \d:\nTraceback", shown.out)
    assert "ValueError: sample 200" in shown.out


@pytest.mark.parametrize("seconds", [0.1, 0.8, 2.0])
def test_an_interrupt_in_the_middle_of_the_start(kernel: Kernel, seconds: float) -> None:
    """Before the starter is there, while it is started, while torch is imported: which it is depends on the machine."""
    shown = kernel.run("notebook.run(make(), workers=2, epochs=100_000)", interrupt_after=seconds)
    assert shown.kind in ("Interrupted", "KeyboardInterrupt"), shown
    assert ours(kernel) == []


def test_an_interrupt_of_a_step_and_going_on_give_the_bits_of_any_number_of_workers(kernel: Kernel) -> None:
    shown = kernel.run(
        """
def slow(model, batch):
    time.sleep(0.1)
    return loss(model, batch)
tell = lambda done: print("done:", done.step)
notebook.run(make(loss=slow, on_step=tell), workers=2, checkpoint_every=1, out="interrupted")
""",
        interrupt_at="done: 3\n",  # by then, the checkpoint after an earlier step is there
    )
    assert re.search(r"Interrupted: interrupted at step \d+; go on from its checkpoint", shown.error), shown
    assert ours(kernel) == []
    shown = kernel.run("""
went_on = notebook.run(make(loss=slow), resume="interrupted")
assert went_on.evaluations[-1][0] == len(went_on.losses) == 16
whole = [notebook.run(make(), workers=workers) for workers in (1, 4)]
len({run.digest for run in [went_on, *whole]}), whole[0].losses == whole[1].losses == went_on.losses
""")
    assert (shown.error, shown.result) == ("", "(1, True)")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "notebook.run(make(loss=lambda m, b: (lock, loss(m, b))[1]))",
            "variable `lock`, field `loss` of `recipe`, a _",
        ),
        ("notebook.run(make(), lane=2)", "has no setting 'lane'; did you mean 'lanes'"),
        ("notebook.run(make(), workers=5, lanes=4)", "lanes=4 cannot be cut over 5 workers"),
        ("notebook.compare(make(), strategies='sngle')", "no strategy called 'sngle'; did you mean 'single'?"),
    ],
)
def test_bad_input_is_one_message(kernel: Kernel, cell: str, message: str) -> None:
    shown = kernel.run(f"lock = threading.Lock()\n{cell}")
    assert shown.kind == "BadInput"
    assert message in shown.error
    assert len(shown.error.splitlines()) < 12, shown.error
    assert ours(kernel) == []


def test_a_python_without_the_packages_is_named(kernel: Kernel, tmp_path: Path) -> None:
    """A kernel that another environment's Python was put under, as some hubs do."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    shown = kernel.run(f"""
import sys
own, sys.executable = sys.executable, {str(bare / "bin" / "python")!r}
try:
    notebook.run("mlp")
finally:
    sys.executable = own
""")
    assert "ModuleNotFoundError: No module named" in shown.err
    assert f"Its Python is {bare / 'bin' / 'python'}: it needs the packages of this kernel" in shown.error


def test_a_value_that_cannot_come_back_is_named(kernel: Kernel) -> None:
    shown = kernel.run("print(notebook.run(lambda: {'lock': threading.Lock()}, workers=1))")
    assert "rank 0's value did not come back: entry 'lock' of `the returned value`, a _thread.lock" in shown.err
    assert shown.out == "None\n"


def test_a_killed_kernel_leaves_nothing(tmp_path: Path) -> None:
    """In Python without IPython: the starter notices, ends the workers and removes what cells defined."""
    script = tmp_path / "script.py"
    script.write_text(
        f"{CELLS}\nnotebook.run(make(on_step=lambda done: print('at work', flush=True)), workers=2, epochs=100_000)"
    )
    marked = Marked({"TMPDIR": str(tmp_path)})
    process = marked.start([sys.executable, str(script)], tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "at work\n"
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    assert marked.survivors() == []
    assert [path.name for path in tmp_path.iterdir() if "notebook" in path.name] == []
