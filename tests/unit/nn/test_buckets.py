"""The bucket plan: sizes, order, places."""

from __future__ import annotations

import torch

from lockstep.nn.buckets import ALIGN, LARGE_BYTES, Bucket, ParameterSpec, plan

CPU = torch.device("cpu")
KIB = 1024


def parameter(name: str, count: int, dtype: torch.dtype = torch.float32, *, frozen: bool = False) -> ParameterSpec:
    return ParameterSpec(name=name, shape=(count,), stride=(1,), dtype=dtype, device=CPU, requires_grad=not frozen)


def members(buckets: list[Bucket]) -> list[list[int]]:
    return [sorted(slot.index for slot in bucket.slots) for bucket in buckets]


def test_the_last_come_first_and_the_first_bucket_is_small() -> None:
    parameters = [parameter(str(i), 256) for i in range(10)]  # 1 KiB each
    assert members(plan(parameters, cap_bytes=4 * KIB, first_bytes=2 * KIB)) == [[8, 9], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_a_bucket_closes_when_it_has_reached_its_size() -> None:
    parameters = [parameter("a", 256), parameter("b", 2048), parameter("c", 256)]
    assert members(plan(parameters, cap_bytes=4 * KIB, first_bytes=1 * KIB)) == [[2], [1], [0]]
    assert members(plan(parameters, cap_bytes=4 * KIB, first_bytes=2 * KIB)) == [[1, 2], [0]]


def test_dtypes_are_apart_and_frozen_ones_left_out() -> None:
    parameters = [
        parameter("a", 8),
        parameter("b", 8, torch.bfloat16),
        parameter("c", 8, frozen=True),
        parameter("d", 8),
        parameter("e", 8, torch.bfloat16),
    ]
    buckets = plan(parameters, cap_bytes=KIB)
    # bfloat16 is complete with parameter 1, float32 only with parameter 0
    assert members(buckets) == [[1, 4], [0, 3]]
    assert [bucket.dtype for bucket in buckets] == [torch.bfloat16, torch.float32]


def test_large_tensors_stand_before_small_ones_and_nothing_overlaps() -> None:
    large = LARGE_BYTES // 4
    parameters = [parameter("a", 3), parameter("b", large), parameter("c", 5), parameter("d", large + 1)]
    (bucket,) = plan(parameters, cap_bytes=1 << 30, first_bytes=1 << 30, multiple=48)
    assert [slot.index for slot in bucket.slots] == [3, 1, 2, 0]
    assert [slot.large for slot in bucket.slots] == [True, True, False, False]
    end = 0
    for slot in bucket.slots:
        assert slot.start >= end
        assert slot.start % ALIGN == 0
        end = slot.start + parameters[slot.index].numel
    assert bucket.small_from == bucket.slots[2].start
    assert bucket.numel > end  # the flag
    assert bucket.numel % 48 == 0


def test_a_plan_depends_on_the_parameters_alone() -> None:
    parameters = [parameter(str(i), 100 * i + 1) for i in range(50)]
    assert plan(parameters, cap_bytes=8 * KIB) == plan(list(parameters), cap_bytes=8 * KIB)


def test_dense() -> None:
    def strided(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
        return ParameterSpec(name="x", shape=shape, stride=stride, dtype=torch.float32, device=CPU).is_dense

    assert strided((4, 3, 2, 2), (12, 4, 2, 1))
    assert strided((4, 3, 2, 2), (12, 1, 6, 3))  # channels last
    assert strided((), ())
    assert strided((1, 5), (77, 1))
    assert not strided((4, 3), (6, 2))
    assert not strided((4, 3), (0, 1))
