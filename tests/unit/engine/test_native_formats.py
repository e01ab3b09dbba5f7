"""Weights in float16, and rows that are quantised by a scale that a checkpoint gives, in C++."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.cpu.native.linear import PanelLinear
from tandem_engine.device.packing import pack, pack_int8
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.quantization.int8 import Int8Weight, StaticInput
from tests.unit.engine.attention_cases import random
from tests.unit.engine.native import native_kernels

REFERENCE = ReferenceKernels()


@pytest.fixture(params=runnable_variants())
def kernels(request: pytest.FixtureRequest) -> NativeKernels:
    return native_kernels(request.param)


@given(
    rows=st.integers(1, 30),
    inputs=st.sampled_from([2, 64, 100, 600]),
    outputs=st.sampled_from([1, 31, 33, 257]),
    seed=st.integers(0, 1000),
)
def test_products_with_weights_in_float16_are_those_of_floats(
    kernels: NativeKernels, *, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    x = random(rows, inputs, seed=seed)
    weight = random(outputs, inputs, seed=seed + 1).half()

    packed = pack(kernels, weight)

    assert isinstance(packed, PanelLinear)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(kernels.linear(x, packed).double(), expected, atol=1e-4, rtol=1e-4)
    assert kernels.linear(x.half(), packed).dtype == torch.float16
    assert torch.equal(kernels.embedding(torch.tensor([outputs - 1]), packed), weight[-1:].float())


def test_every_float16_is_read_and_written_as_torch_does(kernels: NativeKernels) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    read = kernels.embedding(torch.zeros(1, dtype=torch.int64), pack(kernels, every.view(1, -1)))

    torch.testing.assert_close(read[0], every.float(), equal_nan=True, rtol=0, atol=0)

    # Floats on, between and beside them, through the cache: V is copied there as it is.
    steps = every.float().view(torch.int32).view(-1, 1) + torch.tensor([0, 1, 4095, 4096, 4097])
    floats = torch.cat((steps.view(torch.float32).flatten(), torch.tensor([3e38, 65519.9, 65520])))
    floats = torch.cat((floats, floats.new_zeros(-len(floats) % 32)))
    metadata = build_attention_metadata(
        query_lens=[1], context_lens=[1], block_tables=[[0]], block_size=1
    )
    caches = torch.zeros(2, 1, len(floats) // 32, 1, 32, dtype=torch.float16)
    qkv = torch.cat((torch.zeros(2 * len(floats)), floats)).view(1, -1)

    kernels.prepare_attention(qkv, torch.zeros(1, 32), caches[0], caches[1], metadata)

    torch.testing.assert_close(caches[1].flatten(), floats.half(), equal_nan=True, rtol=0, atol=0)


@given(
    rows=st.integers(1, 9),
    width=st.sampled_from([1, 50, 64, 1000]),
    zero=st.integers(0, 255),
    scale=st.floats(1e-3, 10),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_rows_are_quantised_by_a_scale_that_is_given(
    kernels: NativeKernels,
    *,
    rows: int,
    width: int,
    zero: int,
    scale: float,
    dtype: torch.dtype,
    seed: int,
) -> None:
    x = random(rows, width, seed=seed, dtype=dtype) * 7
    weight, gate_up = torch.ones(width, dtype=dtype), random(rows, 2 * width, dtype=dtype)
    static = StaticInput(float(torch.tensor(scale)), zero)

    cases = [
        (kernels.quantize(x, static), x.float()),
        (
            kernels.quantize_norm(x, weight, 1e-6, static),
            REFERENCE.rms_norm(x.float(), weight.float(), 1e-6),
        ),
        (kernels.quantize_gated(gate_up, static), REFERENCE.silu_mul(gate_up.float())),
    ]

    for (values, factors), exact in cases:
        expected = (exact.double() / static.scale + zero).clamp(0, 255)
        assert torch.equal(factors, torch.ones(rows))
        assert (values.double() - expected).abs().max() <= 0.5 + 1e-3


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_not_hidden_by_a_scale_that_is_given(
    kernels: NativeKernels, bad: float
) -> None:
    x = random(2, 100)
    x[0, 37] = bad
    weight = torch.ones(5, 100, dtype=torch.int8)
    layer = Int8Weight(weight, torch.ones(5), None, StaticInput(0.1, 100))

    for product in (
        kernels.linear(x, pack_int8(kernels, layer)),
        REFERENCE.linear(x, pack_int8(REFERENCE, layer)),
    ):
        assert not product[0].isfinite().any()
        assert product[1].isfinite().all()
