"""A trainer's checkpoint: what it takes over, and what it refuses before anything is changed."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import IterableDataset, TensorDataset

from lockstep import Trainer, World, once_an_epoch
from lockstep.errors import BadInput
from lockstep.train import checkpoint
from lockstep.train.spec import versions
from lockstep.train.tensor_format import PREFIX
from tests.unit.tensor_files import header_of, sealed, with_content


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(48, 6, generator=generator), torch.arange(48) % 3)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def momentum(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def trainer(**options: Any) -> Trainer:
    fields: dict[str, Any] = {"model": net, "optimizer": momentum, "threads": 1, **options}
    world = World.alone(threads=fields.pop("threads"))
    return Trainer(world, fields.pop("model"), fields.pop("optimizer"), loss, lanes=fields.pop("lanes", 2), **fields)


def train(one: Trainer, stop: int, dataset: Any = None) -> Trainer:
    for epoch in range(one.epoch, 9):
        for batch in one.batches(dataset or data(), global_batch=12, epoch=epoch):
            one.step(batch)
            if one.steps == stop:
                return one
    return one


def frozen() -> nn.Module:
    model = net()
    model.get_parameter("0.weight").requires_grad_(False)
    return model


def grouped(order: int, parameters: Any) -> optim.Optimizer:
    parameters = list(parameters)
    parts = [parameters[:2], parameters[2:]][::order]
    return optim.SGD([{"params": part} for part in parts], lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"threads": 2}, r"written with threads 1, and here it is 2; .*use --threads 1, or join\(threads=1\)"),
        ({"lanes": 3}, "written with lanes 2, and here it is 3"),
        ({"seed": 4}, "written with seed 0, and here it is 4"),
        ({"clip": 1.0}, r"written with clip None, and here it is 1\.0"),
        ({"model": lambda: nn.Linear(6, 3)}, r"parameter 0\.bias is float32 \(8,\) there, and absent here"),
        ({"model": lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh())}, r"\(8, 6\) there, .* \(9, 6\) here"),
        ({"model": lambda: net().double()}, r"float32 \(8, 6\) there, and float64 \(8, 6\) here"),
        ({"model": lambda: nn.Sequential(*net(), nn.BatchNorm1d(3))}, r"parameter 3\.weight is not in it there"),
        ({"model": frozen}, r"optimizer state of 0\.weight, which is not trained here"),
        ({"optimizer": partial(optim.AdamW, lr=0.1)}, "has the optimizer SGD, and here it is AdamW"),
        ({"optimizer": partial(grouped, 1)}, "has 1 optimizer groups, and here are 2"),
        ({"schedule": lambda o: lr_scheduler.StepLR(o, 3)}, "has the schedule None, and here it is StepLR"),
    ],
)
def test_refused(other: dict[str, Any], words: str, tmp_path: Path) -> None:
    train(trainer(), 3).save(tmp_path / "one.safetensors")
    two = trainer(**other)
    before = two.digest()
    with pytest.raises(BadInput, match=words) as refused:
        two.load(tmp_path / "one.safetensors")
    assert str(tmp_path / "one.safetensors") in str(refused.value)
    assert (two.digest(), two.steps) == (before, 0)


def damaged_copies(good: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Yield copies with one byte of any value in any place, some of which make no difference."""
    draw = random.Random(seed)
    for _ in range(count):
        place = draw.randrange(len(good))
        yield good[:place] + bytes([draw.randrange(256)]) + good[place + 1 :]


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_file_is_refused_whole(tmp_path: Path, seed: int) -> None:
    """Cut or changed anywhere: it is refused and nothing is taken over, or it is what it was."""
    one, path = train(trainer(optimizer=partial(optim.AdamW, lr=0.1)), 3), tmp_path / "one.safetensors"
    one.save(path)
    good, right = path.read_bytes(), one.digest()
    cut = (good[:length] for length in random.Random(seed).sample(range(len(good)), 40))
    two = trainer(optimizer=partial(optim.AdamW, lr=0.1))
    before = two.digest()
    refused = 0
    for data in (*damaged_copies(good, seed, 150), *cut):
        path.write_bytes(data)
        if data == good:
            continue
        with pytest.raises(BadInput) as refusal:
            two.load(path)
        assert "\n" not in str(refusal.value)
        assert (two.digest(), two.steps) == (before, 0)
        refused += 1
    assert refused > 150
    path.write_bytes(good)
    two.load(path)
    assert (two.digest(), two.steps) == (right, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"groups": 3},
        {"groups": [{}]},
        {"groups": [{"parameters": "0.weight", "values": {"dict": []}}]},
        {"groups": [{"parameters": [], "values": [1]}]},
        {"plain": None},
        {"plain": {"elsewhere": {"dict": []}}},
        {"plain": {"0.weight": 3}},
        {"optimizer": {}},
        {"schedule": "StepLR"},
        {"schedule_state": {"dict": []}},
    ],
)
def test_settings_of_another_form(change: dict[str, Any], tmp_path: Path) -> None:
    """The hash is right: somebody wrote this on purpose, or another version did."""
    path = tmp_path / "one.safetensors"
    train(trainer(), 3).save(path)
    forge = with_content(lambda content: {**content, "settings": {**content["settings"], **change}})
    path.write_bytes(forge(path.read_bytes()))
    two = trainer()
    before = two.digest()
    with pytest.raises(BadInput, match=r"one\.safetensors has settings of the optimizer that cannot be read"):
        two.load(path)
    assert two.digest() == before


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("lr", "fast", r"has 'fast' for lr, and here it is 0\.1"),
        ("lr", None, r"has None for lr, and here it is 0\.1"),
        ("lr", {"tensor": ["float32", [2], "00" * 8]}, r"for lr, and here it is 0\.1"),
        ("nesterov", "yes", "has 'yes' for nesterov, and here it is False"),
    ],
)
def test_a_setting_that_cannot_take_the_place_of_the_one_here(key: str, value: Any, words: str, tmp_path: Path) -> None:
    """It was found out when the weights had been replaced, or in the next step."""

    def change(content: dict[str, Any]) -> None:
        pairs = content["settings"]["groups"][0]["values"]["dict"]
        next(pair for pair in pairs if pair[0] == key)[1] = value

    refused_unchanged(with_content(change), words, tmp_path, trainer())


def test_a_schedule_that_refuses_its_state_leaves_everything_as_it_was(tmp_path: Path) -> None:
    class Picky(lr_scheduler.StepLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.gamma = 7.0
            raise KeyError("not this one")

    def picky(optimizer: optim.Optimizer) -> lr_scheduler.LRScheduler:
        return Picky(optimizer, 2)

    path = tmp_path / "one.safetensors"
    train(trainer(schedule=picky), 3).save(path)
    two = trainer(schedule=picky)
    two.optimizer.param_groups[0]["momentum"] = 0.5
    before, schedule = two.digest(), two.strategy.tuned()[0].schedule
    with pytest.raises(BadInput, match=r"settings that cannot be used here \(KeyError: 'not this one'\)"):
        two.load(path)
    assert (two.digest(), two.optimizer.param_groups[0]["momentum"]) == (before, 0.5)
    assert isinstance(schedule, Picky)
    assert schedule.gamma == 0.1


def test_counters_that_differ_where_a_strategy_has_one_for_all(tmp_path: Path) -> None:
    adam = partial(optim.AdamW, lr=0.1)

    def change(data: bytes) -> bytes:
        (length,) = PREFIX.unpack(data[: PREFIX.size])
        at = PREFIX.size + length + header_of(data)["optimizer/2.bias/step"]["data_offsets"][0]
        return sealed(data[:at] + struct.pack("<f", 9.0) + data[at + 4 :])

    two = trainer(optimizer=adam, strategy="dp", workers=2)
    words = r"the optimizer has another 'step' for 2\.bias than for others of its group"
    refused_unchanged(change, words, tmp_path, two, optimizer=adam)


def refused_unchanged(forge: Callable[[bytes], bytes], words: str, folder: Path, two: Trainer, **options: Any) -> None:
    """Hold that a forged checkpoint is refused, and that the trainer is as before."""
    path = folder / "one.safetensors"
    train(trainer(**options), 3).save(path)
    path.write_bytes(forge(path.read_bytes()))
    before = two.digest()
    with pytest.raises(BadInput, match=words):
        two.load(path)
    assert (two.digest(), two.steps, two.lr) == (before, 0, 0.1)


def test_groups_with_other_parameters(tmp_path: Path) -> None:
    train(trainer(optimizer=partial(grouped, 1)), 1).save(tmp_path / "one.safetensors")
    with pytest.raises(BadInput, match=r"other parameters in group 0 of the optimizer: 0\.weight is the first"):
        trainer(optimizer=partial(grouped, -1)).load(tmp_path / "one.safetensors")


def test_an_older_torch_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = versions()
    monkeypatch.setattr(checkpoint, "versions", lambda: {**here, "torch": "1.0"})
    train(trainer(), 1).save(tmp_path / "one.safetensors")
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"torch 1\.0 wrote the checkpoint"):
        trainer().load(tmp_path / "one.safetensors")


class Counting(optim.Optimizer):
    """Looks at whole tensors, and counts in plain numbers."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.5)})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    p.sub_(p.grad / p.grad.norm(), alpha=group["lr"] / state["count"])


SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 6]),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "once an epoch": lambda o: once_an_epoch(lr_scheduler.StepLR(o, 2), 3),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=12),
    "two": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.CosineAnnealingWarmRestarts(o, 3)], [4]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in")
@pytest.mark.parametrize("name", [*SCHEDULES, "tensor rate", "plain counters", "changed by hand"])
def test_settings_go_along(name: str, tmp_path: Path) -> None:
    optimizers: dict[str, Any] = {
        "tensor rate": lambda ps: optim.Adam(ps, lr=torch.tensor(0.01), foreach=False),
        "plain counters": partial(Counting, lr=0.1),
    }
    options = {"optimizer": optimizers.get(name, momentum), "schedule": SCHEDULES.get(name)}
    if name == "tensor rate":
        options["schedule"] = lambda o: lr_scheduler.ExponentialLR(o, 0.9)
    whole = trainer(**options)
    one = trainer(**options)
    for each in (one, whole):
        train(each, 5)
        if name == "changed by hand":
            each.strategy.optimizer.param_groups[0]["lr"] = 0.025
    one.save(tmp_path / "one.safetensors")
    for batch in whole.batches(data(), global_batch=12, epoch=1, start=whole.epoch_step):
        whole.step(batch)
    two = trainer(**options)
    two.load(tmp_path / "one.safetensors")
    train(two, 8)
    assert two.digest() == whole.digest()
    assert two.strategy.optimizer.param_groups[0]["lr"] == whole.strategy.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("optimizer", "schedule", "words"),
    [
        (partial(optim.SGD, lr=0.3, momentum=0.9), [4, 10], "lr of group 0 of the optimizer was 0.1 .* is 0.3 now"),
        (partial(optim.SGD, lr=0.1, momentum=0.8), [4, 10], "momentum of group 0 .* was 0.9 .* is 0.8 now"),
        (momentum, [4, 9], r"milestones of the schedule MultiStepLR was .*4: 1, 10: 1.* is .*4: 1, 9: 1.* now"),
    ],
)
def test_changed_settings_are_named_and_the_checkpoints_are_used(
    optimizer: Any, schedule: list[int], words: str, tmp_path: Path
) -> None:
    def at(milestones: list[int]) -> Any:
        return lambda o: lr_scheduler.MultiStepLR(o, milestones)

    train(trainer(schedule=at([4, 10])), 5).save(tmp_path / "one.safetensors")
    whole = train(trainer(schedule=at([4, 10])), 11)
    other = trainer(optimizer=optimizer, schedule=at(schedule))
    with pytest.warns(UserWarning, match=words):
        other.load(tmp_path / "one.safetensors")
    assert train(other, 11).digest() == whole.digest()
    other.save(tmp_path / "two.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(schedule=at([4, 10])).load(tmp_path / "two.safetensors")


def test_state_that_cannot_be_held(tmp_path: Path) -> None:
    class Strange(Counting):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            self.state[self.param_groups[0]["params"][0]]["function"] = print

    one = train(trainer(optimizer=partial(Strange, lr=0.1)), 1)
    with pytest.raises(BadInput, match=r"state of 0\.weight\['function'\] is a builtin_function_or_method"):
        one.save(tmp_path / "one.safetensors")
    assert not list(tmp_path.iterdir())


def test_the_place_in_the_data(tmp_path: Path) -> None:
    """48 samples in batches of 12: four steps an epoch."""
    train(trainer(), 6).save(tmp_path / "one.safetensors")
    two = trainer()
    two.load(tmp_path / "one.safetensors")
    assert (two.steps, two.epoch, two.epoch_step) == (6, 1, 2)
    with pytest.raises(BadInput, match=r"epoch 0 was done before .* loop over range\(trainer\.epoch, epochs\)"):
        next(two.batches(data(), global_batch=12, epoch=0))
    with pytest.raises(BadInput, match="written with global batch 12, and here it is 24"):
        next(two.batches(data(), global_batch=24, epoch=1))
    assert [batch.step for batch in two.batches(data(), global_batch=12, epoch=1)] == [6, 7]
    assert [batch.step for batch in two.batches(data(), global_batch=12, epoch=1)] == [4, 5, 6, 7]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        whole = data()
        return (whole[index] for index in range(len(whole)))


def test_a_stream(tmp_path: Path) -> None:
    whole = train(trainer(), 7, Stream())
    train(trainer(), 5, Stream()).save(tmp_path / "one.safetensors")
    two = trainer()
    two.load(str(tmp_path / "one.safetensors"))
    train(two, 7, Stream())
    assert two.digest() == whole.digest()
