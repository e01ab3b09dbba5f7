"""The NPU's kernels on the pretended device, for engines in a process that has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tandem_engine.device.registry import BACKENDS
from tests.npu.operators import any_size, operators_on_cpu
from tests.npu.runtime import NpuOnCpu
from tests.pretended_device.tensors import NAME

_CAST = "npu_format_cast"


class NpuOnDevice(NpuOnCpu):
    """A runtime for `registry.BACKENDS`."""

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes=memory_bytes)
        self.device = torch.device(NAME, 0)


@contextmanager
def engines_on_device(name: str = "cpu") -> Iterator[None]:
    """Let engines of this process that ask for a device of that name compute on this one."""
    backends = {name: f"{__name__}:{NpuOnDevice.__name__}"}
    with operators_on_cpu(), tiles(), any_size(), patch.dict(BACKENDS, backends):
        yield


@contextmanager
def tiles() -> Iterator[None]:
    """Take each layout for the plain one."""
    library: Any = torch.library.Library(NAME, "FRAGMENT")  # type: ignore[no-untyped-call]
    if not hasattr(torch.ops.npu, _CAST):
        library.define(f"{_CAST}(Tensor self, int acl_format) -> Tensor")
    library.impl(_CAST, _in_tiles, "CPU")
    try:
        yield
    finally:
        library._destroy()


def _in_tiles(tensor: Tensor, _: int) -> Tensor:
    return tensor.clone()
