"""Measures what this machine can do at best: reading memory, and products of matrices.

It runs under Tandem's interpreter, for it needs torch.
"""

import ctypes
import mmap
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.peers.runners.protocol import (
    MeasureRoofline,
    Message,
    ProtocolError,
    RooflineRates,
    clock,
    serve_with,
)

_BYTES: Final = 512 << 20
"""Far more than any cache holds."""
_HUGE: Final = 2 << 20
_READS: Final = 6
_LEAST_S: Final = 0.3
"""A product is repeated for so long at least."""
_ZERO_POINT: Final = 128
_SCALE: Final = 0.02


def measure(request: Message) -> RooflineRates:
    """Answer a `MeasureRoofline`.

    Raises:
        ProtocolError: it is another message.
    """
    if not isinstance(request, MeasureRoofline):
        raise ProtocolError("The roofline's runner measures the roofline, and nothing else.")
    torch.set_num_threads(request.num_threads)
    bandwidth, reader = read_bandwidth(request.num_threads)
    chance = torch.Generator().manual_seed(0)
    layer = [
        torch.randn((outputs, inputs), generator=chance) * _SCALE
        for outputs, inputs in request.gemms
    ]
    layers = layer * request.num_layers
    with_w8a8 = "w8a8" in request.types and _has_w8a8()
    return RooflineRates(
        bandwidth=bandwidth,
        bandwidth_by=reader,
        bf16=_rates(layers, request.sizes, _bf16_product),
        w8a8=_rates(layers, request.sizes, _w8a8_product) if with_w8a8 else {},
    )


def read_bandwidth(num_threads: int) -> tuple[float, str]:
    """Bytes a second that all threads read together, and what read them; the best of some runs.

    The data is random and stands in huge pages: constant data reads faster than weights ever will,
    and small pages slower.
    """
    memory = mmap.mmap(-1, _BYTES + _HUGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    begin = -whole.ctypes.data % _HUGE
    words = whole[begin : begin + _BYTES].view(np.uint64)
    words[:] = np.random.default_rng(0).integers(0, 2**63, len(words), dtype=np.uint64)
    # Floats that are not NaN or infinity, for the reader by numpy.
    words &= np.uint64(0x3FFF_FFFF_3FFF_FFFF)
    read, name = _reader(words, num_threads)
    return _BYTES / min(_seconds(read) for _ in range(_READS)), name


def _reader(words: Any, num_threads: int) -> tuple[Callable[[], object], str]:
    compiled = _compiled()
    if compiled is not None:
        address = words.ctypes.data_as(ctypes.c_void_p)
        return lambda: compiled(address, len(words)), "C, huge pages"
    parts = np.array_split(words.view(np.float32), num_threads)
    pool = ThreadPoolExecutor(num_threads)
    return lambda: list(pool.map(lambda part: np.dot(part, part), parts)), "numpy, huge pages"


def _compiled() -> Callable[..., int] | None:
    """`read_words` of bandwidth.c; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tandem-peers-") as folder:
        library = Path(folder) / "bandwidth.so"
        source = Path(__file__).with_name("bandwidth.c")
        command = [compiler, "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        done = subprocess.run(
            [*command, "-o", str(library), str(source)], capture_output=True, check=False
        )
        if done.returncode:
            return None
        function = ctypes.CDLL(str(library)).read_words
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_uint64
    return function


Product = Callable[[torch.Tensor, int], Callable[[], object]]
"""Packs a weight for so many rows; the result computes it."""


def _rates(
    weights: Sequence[torch.Tensor], sizes: Sequence[int], product: Product
) -> dict[str, float]:
    """Operations a second of all products of a model one after the other, by rows.

    All of them, each with a copy of its weight, so that weights come from memory as in a step.
    """
    num_operations = sum(2 * weight.numel() for weight in weights)
    rates = {}
    for size in sizes:
        products = [product(weight, size) for weight in weights]
        seconds = _best_seconds(partial(_compute_all, products))
        rates[str(size)] = num_operations * size / seconds
    return rates


def _compute_all(products: Sequence[Callable[[], object]]) -> None:
    for compute in products:
        compute()


def _bf16_product(weight: torch.Tensor, rows: int) -> Callable[[], object]:
    plain = weight.bfloat16()
    left = torch.randn((rows, weight.shape[1])).bfloat16()
    try:
        # A packed weight is what torch has fastest; its interface is private.
        packed = torch.ops.mkldnn._reorder_linear_weight(plain, rows)  # noqa: SLF001
    except (RuntimeError, AttributeError):
        return lambda: torch.nn.functional.linear(left, plain)
    return lambda: torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")  # noqa: SLF001


def _w8a8_product(weight: torch.Tensor, rows: int) -> Callable[[], object]:
    outputs, inputs = weight.shape
    whole = (weight * 1000).clamp(-127, 127).to(torch.int8)
    left = torch.randint(0, 255, (rows, inputs), dtype=torch.uint8)
    ones, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)
    packed = torch.ops.onednn.qlinear_prepack(whole, [rows, inputs])
    tail: tuple[Any, ...] = (ones, zeros, None, 1.0, 0, torch.float32, "none", [], "none")
    return lambda: torch.ops.onednn.qlinear_pointwise(left, 1.0, _ZERO_POINT, packed, *tail)


def _has_w8a8() -> bool:
    try:
        _w8a8_product(torch.ones((64, 64)), 16)()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


def _best_seconds(compute: Callable[[], object]) -> float:
    compute()
    best = spent = _seconds(compute)
    while spent < _LEAST_S:
        took = _seconds(compute)
        best, spent = min(best, took), spent + took
    return best


def _seconds(compute: Callable[[], object]) -> float:
    begin_s = clock()
    compute()
    return clock() - begin_s


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    serve_with(measure)
