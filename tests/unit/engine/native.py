"""The compiled kernels, for tests: skipped where nothing can compile them, and only there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tandem_engine.device.cores import ThreadPlan
from tandem_engine.device.native.kernels import NativeKernels
from tandem_engine.device.native.library import AUTO, load_library


def native_kernels(variant: str = AUTO) -> NativeKernels:
    library = load_library(variant)
    if library is None and shutil.which("g++") is None:
        pytest.skip("there is no g++ that could have built the kernels")
    assert library is not None, "build them: python -m tandem_engine.device.native.build"
    return NativeKernels(library)


@contextmanager
def threads_of(kernels: NativeKernels, count: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = kernels.library.num_threads
    kernels.library.use_threads(ThreadPlan(num_threads=count))
    yield
    kernels.library.use_threads(ThreadPlan(num_threads=before))
