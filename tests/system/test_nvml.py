"""A GPU by the driver's library: none is here, so one with its functions is built, and called as the real one is."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lockstep.train.nvml import GpuLoad, gpu_by_uuid
from tests.services import require

SOURCE = """
#include <string.h>
typedef struct { unsigned gpu, memory; } use; typedef struct { unsigned long long total, free, used; } space;
static int begun = 0;
int nvmlInit_v2(void) { begun = 1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (!begun || strcmp(uuid, "GPU-1")) return 6;
    *handle = (void *)0x123456789abcULL; return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, use *out) {
    if (handle != (void *)0x123456789abcULL) return 2;
    out->gpu = 37; out->memory = 5; return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, space *out) {
    if (handle != (void *)0x123456789abcULL) return 2;
    out->total = 40ULL << 30; out->free = 30ULL << 30; out->used = 10ULL << 30; return 0;
}
"""


def test_a_gpu_is_asked_for_its_load(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    (tmp_path / "nvml.c").write_text(SOURCE)
    subprocess.run([require("cc"), "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    gpu = gpu_by_uuid("GPU-1", str(library))
    assert gpu is not None
    assert gpu.load() == GpuLoad(0.37, 10 << 30)
    assert gpu_by_uuid("GPU-2", str(library)) is None
    assert gpu_by_uuid("GPU-1", str(tmp_path / "none.so")) is None
