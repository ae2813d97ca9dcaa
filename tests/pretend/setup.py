"""Builds the pretend devices: `pip install --no-build-isolation --no-deps --target FOLDER tests/pretend`."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

SOURCES = ["csrc/memory.cpp", "csrc/streams.cpp", "csrc/operators.cpp", "csrc/module.cpp"]

setup(
    ext_modules=[CppExtension("pretend_device._device", SOURCES, extra_compile_args=["-O1", "-g0"])],
    cmdclass={"build_ext": BuildExtension},
)
