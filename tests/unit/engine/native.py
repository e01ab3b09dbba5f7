"""The compiled kernels, for tests: skipped where nothing can compile them, and only there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import AUTO, load_library
from tandem_engine.device.cpu.threads.cores import ThreadPlan

FOLDER = os.environ.get("TANDEM_TEST_KERNELS")
"""Folder of other kernels than the package's; `tools.check_native` has one variant there."""


def native_kernels(variant: str = AUTO) -> NativeKernels:
    if FOLDER and variant != AUTO and not list(Path(FOLDER).glob(f"kernels-{variant}-*.so")):
        pytest.skip(f"{FOLDER} has no kernels of the variant {variant}")
    library = load_library(variant, Path(FOLDER)) if FOLDER else load_library(variant)
    if library is None and shutil.which("g++") is None:
        pytest.skip("there is no g++ that could have built the kernels")
    assert library is not None, "build them: python -m tandem_engine.device.cpu.native.build"
    return NativeKernels(library)


@contextmanager
def threads_of(kernels: NativeKernels, count: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = kernels.library.num_threads
    kernels.library.use_threads(ThreadPlan(num_threads=count))
    yield
    kernels.library.use_threads(ThreadPlan(num_threads=before))
