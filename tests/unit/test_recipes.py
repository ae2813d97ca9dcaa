"""The built-in recipes: what their data costs."""

from __future__ import annotations

import subprocess
import sys

IMAGES = """
import re
from pathlib import Path
from lockstep.recipes.cifar100 import make_images

def most() -> int:
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

make_images(64, part=0)
before = most()
images = make_images(12800, part=0).tensors[0]
print((most() - before) / images.nbytes)
"""


def test_generated_images_are_in_memory_once() -> None:
    """The making of the data is at the start of every worker: several copies at once were the most it ever took."""
    done = subprocess.run([sys.executable, "-c", IMAGES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout) < 1.3
