"""Batches from whatever a user may pass, ahead of time or not: the same samples, the same bits."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lockstep import Trainer, World
from lockstep.data import Augmented, Ragged
from lockstep.data.loader import Batch, Share, batches
from lockstep.data.prefetch import prefetched
from lockstep.data.source import open_source
from lockstep.errors import BadInput
from lockstep.mesh import Mesh
from lockstep.train.evaluate import evaluate

SAMPLES = 26
SHARE = Share(global_batch=8, lanes=4, seed=3)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def flat(found: Iterator[Batch]) -> list[tuple[int, int, int, Any]]:
    """Return steps, lanes and contents, in a form that compares."""
    return [
        (batch.step, lane.lane, lane.samples, torch.as_tensor(lane.data).tolist())
        for batch in found
        for lane in batch.lanes
    ]


class Numbers(Dataset[Tensor]):
    """Its own number, and one drawn from each generator of the process."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), torch.rand(()).item(), random.random(), np.random.random()])


class Stream(IterableDataset[Tensor]):
    """Numbers in order, and a random one each."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(SAMPLES):
            yield torch.tensor([float(number), torch.rand(()).item(), float(self.epoch)])


class Sized(Stream):
    def __len__(self) -> int:
        return SAMPLES


def test_reading_ahead_changes_nothing() -> None:
    ragged = Ragged([torch.full((3,), i) for i in range(SAMPLES)])
    expected = flat(batches(ragged, SHARE, epoch=1, prefetch=0))
    for depth in (None, 1, 5, 100):
        assert flat(batches(ragged, SHARE, epoch=1, prefetch=depth)) == expected
    assert flat(batches(ragged, SHARE, epoch=1, start=2)) == [row for row in expected if row[0] >= 4 + 2]


def test_the_same_digest_ahead_and_not() -> None:
    data = TensorDataset(torch.randn(40, 6, generator=torch.Generator().manual_seed(1)))
    digests = set()
    for depth in (0, 3):
        model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        trainer = Trainer(
            World.alone(threads=1), model, lambda ps: SGD(ps, lr=0.001), lambda m, b: m(b[0]).square().mean(), lanes=2
        )
        for batch in trainer.batches(data, global_batch=8, prefetch=depth):
            trainer.step(batch)
        digests.add(trainer.digest())
    assert len(digests) == 1


def test_it_really_reads_ahead_and_no_further_than_told() -> None:
    made: list[int] = []
    third = threading.Event()

    def source() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            if number == 3:
                third.set()
            yield number

    ahead = prefetched(source(), 2)
    assert next(ahead) == 0
    assert third.wait(10), "one was taken, two wait, and one is being put"
    assert made == [0, 1, 2, 3]
    assert list(ahead) == list(range(1, 20))


@pytest.mark.parametrize("how", ["dropped", "closed", "exhausted", "failed", "never begun"])
def test_no_thread_is_left(how: str) -> None:
    ragged = Ragged([torch.full((3,), i) for i in range(SAMPLES)])
    source: Any = batches(ragged, SHARE, epoch=0)
    if how != "never begun":
        next(source)
        assert "lockstep prefetch" in names()
    if how == "closed":
        source.close()
    elif how == "exhausted":
        list(source)
    elif how == "failed":
        with pytest.raises(RuntimeError, match="in the loop"):
            source.throw(RuntimeError("in the loop"))
    del source
    gc.collect()
    assert "lockstep prefetch" not in names()


class Broken(Numbers):
    def __getitem__(self, index: int) -> Tensor:
        if index == 13:
            raise ValueError("a bad picture")
        return torch.tensor(float(index))


@pytest.mark.parametrize("how", ["here", "thread", "workers", "list"])
def test_an_error_names_the_sample(how: str) -> None:
    data: Any = Broken()
    if how == "workers":
        data = DataLoader(data, num_workers=1, multiprocessing_context="fork")
    if how == "list":
        data = [torch.zeros(3)] * 13 + [torch.zeros(4)] * 13
    with pytest.raises((ValueError, RuntimeError)) as caught:
        list(batches(data, SHARE, epoch=0, prefetch=2 if how == "thread" else None))
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert ("while making a batch of the samples" if how == "list" else "while reading sample 13 of Broken") in text
    assert "lockstep prefetch" not in names()
    del caught
    gc.collect()  # a traceback keeps a stock loader's workers alive


def test_augmentation_follows_the_sample_alone() -> None:
    """Whoever reads a sample, after whatever, its random numbers are those of (seed, epoch, sample)."""

    def seen(workers: int, **options: Any) -> dict[float, list[float]]:
        found: dict[float, list[float]] = {}
        for rank in range(workers):
            share = Share(global_batch=8, lanes=4, workers=workers, rank=rank, seed=3)
            for batch in batches(options.get("data", Numbers()), share, epoch=options.get("epoch", 0)):
                random.random()
                torch.rand(3)
                for lane in batch.lanes:
                    found |= {row[0]: row[1:] for row in lane.data.tolist() if lane.samples}
        return found

    expected = seen(1)
    assert len({tuple(row) for row in expected.values()}) == SAMPLES
    assert seen(3) == expected
    assert seen(2, data=DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork")) == expected
    assert seen(1, epoch=1) != expected


def test_the_generators_of_the_process_are_left_alone() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = torch.rand(1).item(), random.random(), np.random.random()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    next(batches(Numbers(), SHARE, epoch=0))
    next(batches(Stream(), SHARE, epoch=0))
    assert (torch.rand(1).item(), random.random(), np.random.random()) == expected


def test_augmented_with_a_generator_of_its_own() -> None:
    def change(sample: Tensor, generator: torch.Generator) -> Tensor:
        return sample + torch.rand(sample.shape, generator=generator)

    data = Augmented(Ragged([torch.full((2,), float(i)) for i in range(SAMPLES)]), change)
    expected = flat(batches(data, SHARE, epoch=0, prefetch=0))
    assert flat(batches(data, SHARE, epoch=0, prefetch=2)) == expected
    assert flat(batches(data, SHARE, epoch=1)) != expected
    drawn = {int(row[0]): row for entry in expected for row in entry[3]}
    assert sorted(drawn) == list(range(SAMPLES))
    assert data[4].tolist() == [4.0, 4.0], "evaluation sees the sample as it is"
    lengths = Augmented(Ragged([torch.ones(i) for i in range(SAMPLES)]).batched("padded"), change)
    assert next(batches(lengths, SHARE, epoch=0)).lanes[0].data.values.dim() == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stock_loader_lends_dataset_collate_and_workers(workers: int) -> None:
    data = TensorDataset(torch.arange(SAMPLES))

    def doubled(items: list[Any]) -> Tensor:
        return torch.stack([2 * item[0] for item in items])

    loader: Any = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers, collate_fn=doubled)
    assert open_source(loader).samples == SAMPLES
    assert flat(batches(loader, SHARE, epoch=2)) == flat(batches(data, SHARE, epoch=2, collate=doubled))


@pytest.mark.parametrize("stream", [Stream, Sized])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stream_is_cut_exactly(stream: type[Stream], workers: int) -> None:
    steps: dict[tuple[int, int], list[Any]] = {}
    for rank in range(workers):
        share = Share(global_batch=8, lanes=4, workers=workers, rank=rank)
        for batch in batches(stream(), share, epoch=1, first_step=4):
            for lane in batch.lanes:
                if lane.samples:
                    steps[batch.step, lane.lane] = lane.data.tolist()
    rows = [row for key in sorted(steps) for row in steps[key]]
    assert [row[0] for row in rows] == [float(number) for number in range(SAMPLES)]
    assert {row[2] for row in rows} == {1.0}
    assert min(steps)[0] == 4
    later = list(batches(stream(), SHARE, epoch=1, start=2, first_step=6))
    assert later[0].step == 6
    alone = {(batch.step, lane.lane): lane.data.tolist() for batch in later for lane in batch.lanes}
    if workers == 1:
        assert [key for key in alone if key in steps] == list(alone)


def test_a_stream_without_length_is_counted_by_the_trainer() -> None:
    trainer = Trainer(
        World.alone(threads=1), nn.Linear(3, 1), lambda ps: SGD(ps, lr=0.1), lambda m, b: m(b).mean(), lanes=2
    )
    steps = [batch.step for epoch in range(2) for batch in trainer.batches(Stream(), global_batch=8, epoch=epoch)]
    assert steps == list(range(8))
    assert open_source(Stream()).samples is None


def test_loaders_say_how_they_read() -> None:
    data: Any = list(range(SAMPLES))
    in_order = flat(batches(DataLoader(data, batch_size=8), SHARE, epoch=3))
    assert [value for entry in in_order for value in entry[3]] == data
    dropping = list(batches(DataLoader(data, batch_size=8, shuffle=True, drop_last=True), SHARE, epoch=3))
    assert [batch.samples for batch in dropping] == [8] * (SAMPLES // 8)
    assert dropping[0].step == 3 * (SAMPLES // 8), "the steps before are counted without the short ones"


def test_a_short_last_batch_is_left_out() -> None:
    share = replace(SHARE, drop_last=True)
    for data in (Numbers(), Stream(), Sized()):
        counts = [batch.samples for batch in batches(data, share, epoch=0)]
        assert counts == [8] * (SAMPLES // 8)


class Lies(Stream):
    """A stream with another number of samples than it says."""

    def __init__(self, said: int) -> None:
        self.said = said

    def __len__(self) -> int:
        return self.said


@pytest.mark.parametrize(
    ("said", "words"), [(SAMPLES + 1, f"Lies has {SAMPLES} samples"), (9, "has more than 9 samples")]
)
def test_a_stream_that_is_not_as_long_as_it_says(said: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        list(batches(Lies(said), SHARE, epoch=0))


def test_a_stream_that_can_be_read_only_once() -> None:
    class Once:
        def __init__(self) -> None:
            self.source = iter(range(SAMPLES))

        def __iter__(self) -> Any:
            return self.source

    data = Once()
    assert len(list(batches(data, SHARE, epoch=0))) == 4
    with pytest.raises(BadInput, match="each call of its __iter__ must begin the stream anew"):
        list(batches(data, SHARE, epoch=1))


def test_evaluation_of_streams_and_loaders() -> None:
    for data in (Stream(), DataLoader(Stream(), batch_size=3), DataLoader(Numbers(), batch_size=3)):
        found = evaluate(
            Mesh.over(World.alone()), nn.Linear(1, 1), lambda m, b: {"mean": b[:, 0].mean()}, data, batch=5
        )
        assert found == pytest.approx({"mean": (SAMPLES - 1) / 2})


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (lambda: DataLoader(Numbers(), batch_size=5), "has batch_size=5, expected the global batch of 8"),
        (lambda: DataLoader(Numbers(), sampler=WeightedRandomSampler([1.0] * 26, 26)), "has a WeightedRandomSampler"),
        (lambda: DataLoader(Numbers(), batch_size=None), "has batch_size=None, so its dataset returns whole batches"),
        (
            lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(Numbers()), 8, False)),
            "has a batch_sampler",
        ),
        (lambda: DataLoader(Numbers(), batch_sampler=[[0, 1], [2]]), "has a list, but Lockstep makes the batches"),
        (
            lambda: DataLoader(Numbers(), sampler=RandomSampler(Numbers(), replacement=True)),
            "RandomSampler with replacement=True and num_samples=26",
        ),
        (lambda: DataLoader(Numbers(), sampler=RandomSampler(Numbers(), num_samples=9)), "num_samples=9"),
        (lambda: DataLoader(Stream(), num_workers=1), "has num_workers=1, which would change the order"),
    ],
)
def test_loaders_that_would_not_do_what_they_say(loader: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        next(batches(loader(), SHARE, epoch=0))


def test_the_first_batch_of_a_huge_epoch() -> None:
    class Huge(Dataset[Tensor]):
        def __len__(self) -> int:
            return 10**8

        def __getitem__(self, index: int) -> Tensor:
            return torch.tensor(index)

    first, resumed = (next(batches(Huge(), SHARE, epoch=0, start=start)) for start in (0, 10**7))
    chosen = [int(i) for batch in (first, resumed) for lane in batch.lanes for i in itertools.chain(lane.data)]
    assert len(set(chosen)) == 16
