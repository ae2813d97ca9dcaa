"""Memory that would not fit is refused at once, with the numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.comm import segment
from lockstep.errors import BadInput


def _root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_tightest_limit_counts(tmp_path: Path) -> None:
    root = _root(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 900 kB\n",
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": "500000\n",
            "sys/fs/cgroup/job/memory.current": "100000\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.current": "1\n",
        },
    )
    left = segment.memory_left(root)
    assert left is not None
    assert left[0] == 400_000
    assert left[1].endswith("job/memory.max")


def test_old_control_groups_count_too(tmp_path: Path) -> None:
    root = _root(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 900 kB\n",
            "proc/self/cgroup": "3:cpu:/x\n4:memory:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
        },
    )
    left = segment.memory_left(root)
    assert left is not None
    assert left[0] == 2000


def test_a_system_that_does_not_say_sets_no_limit(tmp_path: Path) -> None:
    assert segment.memory_left(tmp_path) is None
    segment.check_memory(1 << 60, "it", None)


def test_too_little_memory_is_refused_with_numbers() -> None:
    with pytest.raises(BadInput, match=r"a group needs 8\.0 MiB .* only 2\.0 MiB .*\(limit: the limit\)"):
        segment.check_memory(8 << 20, "a group", (2 << 20, "the limit"))


def test_a_small_folder_is_refused_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    small = os.statvfs_result((real.f_bsize, 4096, 100, 10, 10, *tuple(real)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(BadInput, match=r"needs 1\.0 MiB, but .* has 0\.0 MiB free: .*--shm-size"):
        segment.create(1 << 20, "a group", folder=tmp_path)


@pytest.mark.parametrize("folder", [None, segment.SHM_FOLDER], ids=["memfd", "file"])
def test_a_segment_has_no_name_and_no_guests(folder: Path | None) -> None:
    descriptor = segment.create(1 << 20, "a group", folder=folder)
    try:
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        assert "(deleted)" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
        memory = segment.map_memory(descriptor, 1 << 20, "a group")
        memory[:3] = b"abc"
        memory.close()
        assert os.pread(descriptor, 3, 0) == b"abc"
    finally:
        os.close(descriptor)
