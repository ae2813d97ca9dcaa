"""The pretend devices are what they claim: what would be wrong on a real one is an error here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.devices import only_devices
from tests.ranks import Ranks

pytestmark = only_devices


def device() -> Any:
    import pretend_device

    return pretend_device


def apart(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)


def test_the_cpu_cannot_touch_its_memory() -> None:
    done = apart("import torch, ctypes; ctypes.string_at(torch.ones(3, device='pretend').data_ptr(), 4)")
    assert done.returncode < 0
    assert "the CPU touched device memory" in done.stderr


def test_what_lies_on_several_devices_is_refused() -> None:
    one = torch.ones(3, device="pretend:0")
    for other in (torch.ones(3), torch.ones(3, device="pretend:1")):
        with pytest.raises(RuntimeError, match="same device"):
            one + other


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_network_computes_what_the_cpu_computes(threads: Callable[[int], None]) -> None:
    """On one thread: and so it does however many CPU threads there are."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    values = torch.randn(2, 3, 8, 8)
    results = []
    for place, count in (("cpu", 1), ("pretend:2", 2), ("pretend:3", 1), ("pretend:2", 1)):
        threads(count)
        model = plain.to(place)
        model.zero_grad()
        model(values.to(place)).square().sum().backward()
        results.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(*pair) for other in results[1:] for pair in zip(results[0], other, strict=True))


def test_running_statistics_are_those_of_the_cpu() -> None:
    """An operator's schema does not say that it changes them."""
    values, found = torch.randn(4, 3, 2), []
    for place in ("cpu", "pretend:1"):
        layer = nn.BatchNorm1d(3).to(place)
        layer(values.to(place))
        found.append([buffer.cpu() for buffer in layer.buffers()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert bool(found[0][0].any())


def test_complex_numbers() -> None:
    plain = torch.randn(4, dtype=torch.complex64)
    there = plain.to("pretend:0")
    assert torch.equal(there.conj().cpu(), plain.conj())
    assert torch.equal(there.conj().imag.cpu(), plain.conj().imag)
    torch.view_as_real(there).mul_(2)
    assert torch.equal(there.cpu(), plain * 2)


def test_memory_is_counted_and_runs_out() -> None:
    before = torch.accelerator.memory_allocated(3)
    with torch.device("pretend:3"):
        held = torch.empty(1 << 20, dtype=torch.uint8)
        assert torch.accelerator.memory_allocated(3) == before + held.nbytes
        del held
    assert torch.accelerator.memory_allocated(3) == before
    assert torch.accelerator.max_memory_reserved(3) > torch.accelerator.max_memory_allocated(3) >= before + (1 << 20)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(1 << 40, dtype=torch.uint8, device="pretend:3")


def test_memory_is_reserved_in_segments_and_kept_until_the_cache_is_emptied() -> None:
    segment = 1 << 21
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved(2)
    large = torch.empty(3 * segment + 1, dtype=torch.uint8, device="pretend:2")
    assert torch.accelerator.memory_reserved(2) == before + 4 * segment
    small = [torch.empty(segment // 4, dtype=torch.uint8, device="pretend:2") for _ in range(5)]
    assert torch.accelerator.memory_reserved(2) == before + 5 * segment, "three of five had room in the last segment"
    del large, small
    assert torch.accelerator.memory_reserved(2) == before + 5 * segment
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(2) == before + segment, "the one that is being cut stays"


def test_each_device_draws_by_itself() -> None:
    torch.manual_seed(7)
    first = torch.rand(4, device="pretend:0")
    assert torch.equal(first.cpu(), torch.rand(4, device="pretend:1").cpu())
    state = torch.get_device_module("pretend").get_rng_state()
    again = F.dropout(torch.ones(64, device="pretend:0"))
    torch.get_device_module("pretend").set_rng_state(state)
    assert torch.equal(again.cpu(), F.dropout(torch.ones(64, device="pretend:0")).cpu())


def test_streams_that_nothing_orders_are_a_race() -> None:
    other, event = torch.Stream(device="pretend:0"), torch.Event(device="pretend:0")
    with other:
        made = torch.zeros(8, device="pretend:0")
    with pytest.raises(RuntimeError, match="nothing orders the two"):
        made + 1
    event.record(other)
    torch.accelerator.current_stream(0).wait_event(event)
    assert float((made + 1).sum()) == 8.0


def timed() -> torch.Event:
    return torch.Event(device="pretend:1", enable_timing=True)


def test_events_have_the_device_s_time_and_are_passed_when_somebody_has_waited() -> None:
    stream, begin, end = torch.accelerator.current_stream(1), timed(), timed()
    begin.record(stream)
    with torch.accelerator.device_index(1):
        device().nap(1000)
    end.record(stream)
    assert not end.query()
    with pytest.raises(RuntimeError, match="completed"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.query()
    assert end.query()
    assert begin.elapsed_time(end) >= 1_000_000


def test_a_stream_that_waits_for_an_event_is_as_late_as_that() -> None:
    other, begin, later = torch.Stream(device="pretend:1"), timed(), timed()
    begin.record(torch.accelerator.current_stream(1))
    with other:
        device().nap(1000)
    torch.accelerator.current_stream(1).wait_event(other.record_event())
    later.record(torch.accelerator.current_stream(1))
    later.synchronize()
    assert begin.elapsed_time(later) >= 1_000_000


def test_a_copy_that_nobody_waited_for_is_nonsense() -> None:
    landed = torch.zeros(8, pin_memory=True)
    landed.copy_(torch.ones(8, device="pretend:0"), non_blocking=True)
    assert not torch.equal(landed, torch.ones(8))
    torch.accelerator.synchronize(0)
    assert torch.equal(landed, torch.ones(8))


def test_waits_and_copies_are_counted() -> None:
    pinned = torch.ones(8).pin_memory()
    before = device().counts()
    there = pinned.to("pretend:0", non_blocking=True) + 1
    after = device().counts()
    assert (after["waits"] - before["waits"], after["to_device"] - before["to_device"]) == (0, 1)
    float(there.sum())
    torch.ones(8).to("pretend:0")
    assert device().counts()["waits"] - after["waits"] == 2


def test_an_operator_without_a_deterministic_form_says_so_if_asked() -> None:
    values = torch.ones(4, device="pretend:0")
    torch.histc(values, 4)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="histc_pretend does not have a deterministic implementation"):
            torch.histc(values, 4)
    finally:
        torch.use_deterministic_algorithms(False)


def test_autocast() -> None:
    with torch.autocast("pretend", dtype=torch.bfloat16):
        assert F.linear(torch.ones(2, 4, device="pretend"), torch.ones(3, 4, device="pretend")).dtype is torch.bfloat16


def test_a_device_that_was_used_cannot_be_used_after_a_fork() -> None:
    done = apart(
        "import os, torch\n"
        "torch.ones(2, device='pretend')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: torch.ones(2, device='pretend')\n"
        "    except RuntimeError as error: print(error)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert "Cannot re-initialize pretend in forked subprocess" in done.stdout


def unwaited(rank: int, size: int) -> str:
    """Return what using a tensor says whose collective nobody waited for; then wait."""
    value = torch.ones(4, device=f"pretend:{rank}")
    work = dist.all_reduce(value, async_op=True)
    assert work is not None
    with pytest.raises(RuntimeError) as caught:
        value + 1
    work.wait()
    assert float(value.sum()) == 4.0 * size
    return str(caught.value)


def dropped(rank: int, size: int) -> bool:
    """Drop a tensor with the collective that uses it; return whether another one got its memory."""
    value = torch.ones(1 << 10, device=f"pretend:{rank}")
    place = value.data_ptr()
    dist.all_reduce(value, async_op=True)
    del value
    return torch.ones(1 << 10, device=f"pretend:{rank}").data_ptr() == place


def test_the_memory_of_a_collective_that_nobody_waited_for_is_safe() -> None:
    with Ranks(2, "pccl") as ranks:
        assert ranks.run(dropped) == [True, True]


def test_a_collective_that_nobody_waited_for_is_a_race() -> None:
    with Ranks(2, "pccl") as ranks:
        assert all("nothing orders the two" in said for said in ranks.run(unwaited))
