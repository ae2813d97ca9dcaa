"""Small recipes for tests: one that works, and ones that go wrong in a named way."""

import ctypes
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from lockstep import Recipe


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def make_data(samples: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, 8, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def metrics(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
    inputs, labels = batch
    return {"accuracy": (model(inputs).argmax(1) == labels).float().mean()}


class Fault:
    """Does something terrible on one rank at one call of the loss."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.calls = 0

    def __call__(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        if dist.is_initialized() and dist.get_rank() == 1 and self.calls == 3:
            self.strike()
        self.calls += 1
        return loss(model, batch) * (float("nan") if self.calls > 3 and self.what == "nan" else 1.0)

    def strike(self) -> None:
        if self.what == "raise":
            raise ValueError("the fourth batch is cursed")
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "exit":
            sys.exit(0)
        if self.what == "exit-hard":
            os._exit(0)
        if self.what == "hang":
            time.sleep(600)
        if self.what == "lock":
            ctypes.PyDLL(None).sleep(600)  # a call of C that keeps the interpreter's lock


class Descent(torch.optim.Optimizer):
    """Plain descent that does not import torch's compiler, as torch's own do: that takes as long as torch itself.

    For recipes that are to fail: what they are about happens before an update matters.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def recipe(fault: str = "", samples: int = 96) -> Recipe:
    return Recipe(
        model=make_model,
        data=lambda: make_data(samples),
        loss=Fault(fault) if fault else loss,
        evaluate=metrics,
        optimizer=(lambda ps: Descent(ps, lr=0.1)) if fault else make_optimizer,
        global_batch=12,
        epochs=2,
    )


def raises() -> Recipe:
    return recipe("raise")


def killed() -> Recipe:
    return recipe("kill")


def exits() -> Recipe:
    return recipe("exit")


def exits_hard() -> Recipe:
    return recipe("exit-hard")


def hangs() -> Recipe:
    return recipe("hang")


def locks() -> Recipe:
    return recipe("lock")


def nan() -> Recipe:
    return recipe("nan")


def uneven() -> Recipe:
    return recipe(samples=104)


def wide() -> Recipe:
    """Weights that leave in several sections while backward runs, and small ones; uneven batches."""

    def model() -> nn.Module:
        return nn.Sequential(
            *(nn.Linear(8, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.2)),
            *(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 4)),
        )

    return replace(recipe(samples=104), model=model, epochs=1)


def dry() -> Recipe:
    """One sample in the last batch: without BatchNorm, which refuses a batch of one."""
    return replace(recipe(samples=97), model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))


def breaks() -> Recipe:
    raise RuntimeError("no recipe today")


def wrong() -> dict[str, int]:
    return {"not": 1}


def empty() -> Recipe:
    return recipe(samples=0)


def odd_metric() -> Recipe:
    return replace(recipe(), evaluate=lambda model, batch: {"accuracy": float("nan")})


def unsteady() -> Recipe:
    """Another loss in every process: nothing seeds this generator."""
    noise = torch.Generator()
    noise.seed()
    return replace(recipe(), loss=lambda model, batch: loss(model, batch) * (1 + torch.rand((), generator=noise)))


def large() -> Recipe:
    return replace(recipe(), model=lambda: nn.Linear(2**20, 2**32))  # 16 PiB


def talks() -> Recipe:
    """Says something in every step that not every encoding has."""

    def say(model: nn.Module, batch: list[Tensor]) -> Tensor:
        print("→ a step", flush=True)
        print("→ a step", file=sys.stderr, flush=True)
        return loss(model, batch)

    return replace(recipe(), loss=say)


def dies_early() -> Recipe:
    """The last rank ends while it makes its model, before its first record."""

    def make() -> nn.Module:
        if dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return make_model()

    return replace(recipe(), model=make)


def slow() -> Recipe:
    def wait(model: nn.Module, batch: list[Tensor]) -> Tensor:
        time.sleep(0.2)
        return loss(model, batch)

    return replace(recipe(), loss=wait)
