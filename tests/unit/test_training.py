"""Batches, steps, evaluation and digest in one process, against plain PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adafactor, AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import Dataset, TensorDataset

from lockstep import Loss, Trainer, World
from lockstep.comm.group import Group
from lockstep.data.loader import Share, batches, fetch, to_device
from lockstep.data.sampler import permutation
from lockstep.errors import BadInput, LockstepError, NotFinite
from lockstep.mesh import Mesh
from lockstep.state.hashes import state_digest
from lockstep.state.holdings import plain_holdings, whole
from lockstep.strategies import find
from lockstep.strategies.base import as_sum
from lockstep.strategies.ddp.strategy import Exact
from lockstep.train.evaluate import evaluate
from lockstep.train.trainer import own_settings


def data(samples: int = 50) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(samples, 6, generator=generator), torch.arange(samples) % 3)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def trainer(**options: Any) -> Trainer:
    fields: dict[str, Any] = {"model": net, "optimizer": lambda ps: SGD(ps, lr=0.5), "loss": loss, **options}
    return Trainer(World.alone(threads=1), fields.pop("model"), fields.pop("optimizer"), fields.pop("loss"), **fields)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_workers_together_see_the_epoch_once_and_in_order(workers: int) -> None:
    """Whoever reads them, the lanes of a step hold the same samples, and an epoch holds each sample once."""
    dataset = TensorDataset(torch.arange(50))
    steps: list[dict[int, list[int]]] = [{} for _ in range(5)]
    for rank in range(workers):
        share = Share(global_batch=12, lanes=4, workers=workers, rank=rank, seed=7)
        for batch in batches(dataset, share, epoch=2):
            for lane in batch.lanes:
                if lane.samples:
                    steps[batch.step - 10][lane.lane] = lane.data[0].tolist()
    flat = [sample for step in steps for lane in sorted(step) for sample in step[lane]]
    assert flat == permutation(50, seed=7, epoch=2).tolist()


def test_a_worker_that_runs_dry_gets_a_filler() -> None:
    share = Share(global_batch=4, lanes=4, workers=4, rank=3)
    last = list(batches(TensorDataset(torch.arange(6)), share, epoch=0))[-1]
    assert [lane.samples for lane in last.lanes] == [0]
    assert last.samples == 2


def test_an_epoch_can_start_anywhere() -> None:
    share = Share(global_batch=4, lanes=2)
    whole = list(batches(data(), share, epoch=1))
    later = list(batches(data(), share, epoch=1, start=5))
    assert [batch.step for batch in later] == [batch.step for batch in whole[5:]]
    assert torch.equal(later[0].lanes[0].data[0], whole[5].lanes[0].data[0])


class Squares(Dataset[Tensor]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index * index)


def test_fetch_from_any_dataset() -> None:
    class Quick(Squares):
        def gather(self, indices: Tensor) -> Tensor:
            return indices * indices

    assert fetch(Squares(), [1, 3]).tolist() == [1, 9]
    assert fetch(Quick(), [1, 3]).tolist() == [1, 9]
    assert fetch([5, 6, 7], [2, 0], collate=tuple) == (7, 5)


def test_nothing_moves_on_the_cpu() -> None:
    batch = {"a": [torch.ones(1)]}
    assert to_device(batch, "cpu") is batch
    moved = to_device(batch, "meta")
    assert moved["a"][0].device.type == "meta"


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_single_is_plain_pytorch(lanes: int) -> None:
    """The sum over lanes, divided once, is the gradient of the whole batch's mean; the last batch is short."""
    ours = trainer(lanes=lanes)
    torch.manual_seed(0)
    model = net()
    optimizer = SGD(model.parameters(), lr=0.5)
    order = permutation(50, seed=0, epoch=0).tolist()
    for batch in ours.batches(data(), global_batch=20, epoch=0):
        stats = ours.step(batch)
        chosen = torch.tensor(order[batch.step * 20 : batch.step * 20 + 20])
        plain = loss(model, [data().tensors[0][chosen], data().tensors[1][chosen]])
        optimizer.zero_grad()
        torch.autograd.backward(plain)
        optimizer.step()
        assert stats.loss == pytest.approx(plain.item(), rel=1e-6)
    for mine, theirs in zip(ours.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_weights_of_the_loss_count_not_samples() -> None:
    """A mean of means would be wrong here: lanes weigh 1, 2, 3, ... tokens."""

    def weighted(model: nn.Module, batch: list[Tensor]) -> Loss:
        weights = batch[1].float() + 1
        return Loss((model(batch[0]).square().sum(1) * weights).sum(), weights.sum())

    ours = trainer(loss=weighted, lanes=5)
    torch.manual_seed(0)
    model = net()
    batch = next(ours.batches(data(), global_batch=20))
    stats = ours.step(batch)
    chosen = torch.tensor(permutation(50, seed=0, epoch=0, stop=20).tolist())
    total, weight = weighted(model, [data().tensors[0][chosen], data().tensors[1][chosen]])
    assert stats.loss == pytest.approx((total / weight).item(), rel=1e-6)
    assert stats.weight == float(weight)
    optimizer = SGD(model.parameters(), lr=0.5)
    torch.autograd.backward(total / weight)
    optimizer.step()
    for mine, theirs in zip(ours.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_dropout_follows_step_and_lane_not_what_ran_before() -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))

    first, second = trainer(model=dropping, lanes=2), trainer(model=dropping, lanes=2)
    runs = []
    for one in (first, second):
        losses = []
        for batch in one.batches(data(), global_batch=10):
            if one is second:
                torch.rand(17)
            losses.append(one.step(batch).loss)
        runs.append(losses)
    assert runs[0] == runs[1]


def test_not_finite_is_named_with_step_and_lane() -> None:
    def exploding(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return loss(model, batch) * float("inf")

    one = trainer(loss=exploding, lanes=2)
    with pytest.raises(NotFinite, match=r"the loss is inf at step 0, lane 0, rank 0"):
        one.step(next(one.batches(data(), global_batch=10)))


@pytest.mark.parametrize("returned", [torch.ones(2), "text", None, 3.0])
def test_a_loss_that_is_no_scalar(returned: object) -> None:
    with pytest.raises(BadInput, match="must return a scalar tensor or Loss"):
        as_sum(returned, 1)
    with pytest.raises(BadInput, match="cannot be negative"):
        as_sum(Loss(torch.ones(()), -1.0), 1)


def test_an_optimizer_object_is_refused() -> None:
    with pytest.raises(BadInput, match="takes a function"):
        trainer(optimizer=SGD(net().parameters(), lr=0.1))


class WholeTensors(SGD):
    """An optimizer that nobody knows."""


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp"])
def test_a_strategy_says_how_it_runs(strategy: str) -> None:
    for optimizer, said in [
        (SGD, "on slices"),
        (AdamW, "on slices"),
        (Adafactor, "replicated: Adafactor may look at whole tensors"),
        (WholeTensors, "replicated: WholeTensors may look at whole tensors"),
    ]:
        how = trainer(optimizer=lambda ps, kind=optimizer: kind(ps, lr=0.1), strategy=strategy).strategy.how()
        assert (how.exchange, how.optimizer) == ("in process", said)


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp"])
def test_lbfgs_is_refused_with_a_reason(strategy: str) -> None:
    with pytest.raises(BadInput, match="LBFGS evaluates the loss several times in a step"):
        trainer(optimizer=LBFGS, strategy=strategy)


def test_only_our_own_strategies_can_be_inexact() -> None:
    with pytest.raises(BadInput, match="strategy torch-ddp is never exact"):
        trainer(strategy="torch-ddp", exact=False)


def test_strategies_by_name() -> None:
    with pytest.raises(BadInput, match="no strategy called 'torch-dddp'; did you mean 'torch-ddp'"):
        find("torch-dddp")
    with pytest.raises(BadInput, match="needs at least 2 workers"):
        trainer(strategy="torch-ddp")


@pytest.mark.parametrize("batch", [1, 7, 50, 64])
def test_evaluation_counts_each_sample_once(batch: int) -> None:
    counted: list[int] = []

    def metrics(model: nn.Module, part: list[Tensor]) -> dict[str, Any]:
        counted.extend(part[1].tolist())
        return {"label": part[1].float().mean(), "share": Loss(part[1].sum(), 2 * len(part[1]))}

    dataset = TensorDataset(torch.randn(50, 6), torch.arange(50))
    found = evaluate(Mesh.over(World.alone()), net(), metrics, dataset, batch=batch)
    assert counted == list(range(50))
    assert found == pytest.approx({"label": 24.5, "share": 12.25})


def test_evaluation_keeps_the_mode_and_refuses_nothing_to_evaluate() -> None:
    model = net().train()
    evaluate(Mesh.over(World.alone()), model, lambda m, b: {"training": float(m.training)}, data(), batch=9)
    assert model.training
    with pytest.raises(BadInput, match="evaluation data is empty"):
        evaluate(Mesh.over(World.alone()), model, lambda m, b: {}, [], batch=9)


def digest(tensors: dict[str, Tensor]) -> str:
    return state_digest(Group.alone(), [whole(name, tensor) for name, tensor in tensors.items()])


def test_digest_sees_every_bit_name_shape_and_dtype() -> None:
    base = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}
    others = [
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"].double(), "b": base["b"]},
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"]},
        {"a": torch.nextafter(base["a"], torch.tensor(9.0)), "b": base["b"]},
        {"a": base["a"], "b": torch.tensor(4)},
    ]
    assert len({digest(state) for state in [base, *others]}) == 7
    assert digest(dict(reversed(base.items()))) == digest(base)
    assert digest({"a": base["a"].T.contiguous().T, "b": base["b"]}) == digest(base)
    halves = {"h": torch.ones(2, dtype=torch.bfloat16), "c": torch.ones(1, dtype=torch.complex64)}
    assert digest(halves) != digest({**halves, "c": torch.ones(1, dtype=torch.complex64) * 1j})


def test_training_state_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = AdamW(model.parameters())
    torch.autograd.backward(model(torch.randn(4, 2)).sum())
    optimizer.step()
    names = {holding.name for holding in plain_holdings(model, optimizer)}
    assert {
        "parameter/0.weight",
        "buffer/1.running_mean",
        "optimizer/0.weight/exp_avg",
        "optimizer/1.bias/step",
    } <= names


def test_a_seed_gives_one_digest_and_another_gives_another() -> None:
    def run(seed: int) -> str:
        one = trainer(lanes=2, seed=seed)
        for batch in itertools.islice(one.batches(data(), global_batch=10), 3):
            one.step(batch)
        return one.digest()

    assert run(0) == run(0)
    assert run(0) != run(1)


def test_the_optimizer_state_loads_in_plain_pytorch() -> None:
    def grouped(parameters: Any) -> AdamW:
        parameters = list(parameters)
        plain = [p for p in parameters if p.dim() == 1]
        decayed = [p for p in parameters if p.dim() > 1]
        return AdamW([{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.1}])

    one = trainer(optimizer=grouped, lanes=2)
    for batch in one.batches(data(), global_batch=10):
        one.step(batch)
    assert isinstance(one.strategy, Exact)
    model = net()
    optimizer = grouped(model.parameters())
    optimizer.load_state_dict(one.optimizer_state_dict())
    model.load_state_dict(one.model.state_dict())
    assert state_digest(Group.alone(), plain_holdings(model, optimizer)) == one.digest()


def test_batchnorm_on_a_lane_of_one_sample_names_the_lane_and_the_ways_out() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    own = trainer(model=normed, lanes=4)
    words = r"lane 1 of 4 has 1 sample in step 1 .*drop_last.*--lanes.*--global-batch"
    full, short = own.batches(data(45), global_batch=40)
    own.step(full)
    with pytest.raises(LockstepError, match=words):
        own.step(short)
    dropping = trainer(model=normed, lanes=4)
    for batch in dropping.batches(data(45), global_batch=40, drop_last=True):
        dropping.step(batch)
    assert dropping.steps == 1


def test_the_strategy_follows_from_the_world() -> None:
    assert trainer().settings.strategy == "single"
    assert own_settings(2).strategy == "ddp"


@pytest.mark.parametrize("options", [{}, {"strategy": "dp", "workers": 2}])
def test_the_optimizer_and_its_rate(options: dict[str, Any]) -> None:
    one = trainer(schedule=lambda o: StepLR(o, 1, 0.1), lanes=2, **options)
    assert isinstance(one.optimizer, SGD)
    assert one.lr == 0.5
    for batch in itertools.islice(one.batches(data(), global_batch=10), 1):
        one.step(batch)
    assert one.lr == pytest.approx(0.05)
    one.lr = 0.0
    before = one.digest()
    for batch in itertools.islice(one.batches(data(), global_batch=10, start=1), 1):
        one.step(batch)
    assert one.digest() == before, "no worker updates anything at a rate of 0"


def test_a_schedule_that_follows_a_metric_is_refused() -> None:
    with pytest.raises(BadInput, match=r"ReduceLROnPlateau, which follows a metric.* set trainer\.lr in a loop"):
        trainer(schedule=lambda o: ReduceLROnPlateau(o), lanes=2)


def test_the_loss_is_that_of_this_process_and_the_global_one_is_known() -> None:
    threads, alone = trainer(strategy="dp", workers=2, lanes=2), trainer(lanes=2)
    for one, other in zip(*(t.batches(data(), global_batch=10) for t in (threads, alone)), strict=True):
        both, single = threads.step(one), alone.step(other)
        assert (both.loss, both.weight) == (single.loss, single.weight)
        assert both.global_loss == single.global_loss == single.loss


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (0.5, r'returned a float, expected a dict of named values: return \{"accuracy": value\}'),
        ({"accuracy": torch.ones(3)}, r"returned a Tensor of shape \(3,\) as 'accuracy', expected one number"),
        ({"accuracy": "high"}, "returned a str as 'accuracy', expected one number"),
    ],
)
def test_metrics_of_another_form(returned: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        trainer().evaluate(lambda model, batch: returned, data(), batch=5)
