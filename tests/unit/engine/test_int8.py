"""The arithmetic of W8A8 against formulas worked out on paper and against torch's own product."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device.cpu.memory import give_back_free_memory, resident_memory
from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.packing import pack_int8
from tandem_engine.device.reference.int8_linear import (
    FloatProduct,
    Int8Linear,
    OneDnnProduct,
    Product,
    has_vnni,
)
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.quantization.int8 import (
    Int8Weight,
    StaticInput,
    quantize_rows,
    quantize_static,
    quantize_tokens,
    relative_error,
)
from tests.unit.engine.native import native_kernels

NEEDS_VNNI = pytest.mark.skipif(not has_vnni(), reason="this CPU cannot add up products of bytes")
PRODUCTS = [FloatProduct, pytest.param(OneDnnProduct, marks=NEEDS_VNNI)]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_bytes(*shape: int, low: int, high: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def quantized(weight: Tensor, bias: Tensor | None = None) -> Int8Weight:
    values = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight))
    quantize_rows(weight, values=values, scales=scales)
    return Int8Weight(values, scales, bias)


def test_a_weight_is_scaled_by_the_largest_of_each_row() -> None:
    weight = torch.tensor([[127.0, -63.5, 1.0], [0.0, 0.0, 0.0], [-0.254, 0.1, 0.0]])

    layer = quantized(weight)

    assert layer.values.tolist() == [[127, -64, 1], [0, 0, 0], [-127, 50, 0]]
    torch.testing.assert_close(layer.scales, torch.tensor([1.0, 1.0, 0.002]))


def test_a_token_is_scaled_by_its_own_largest_and_shifted_by_128() -> None:
    values, scales = quantize_tokens(torch.tensor([[2.0, -1.0, 0.0], [0.0, 0.0, 0.0]]))

    assert values.tolist() == [[255, 64, 128], [128, 128, 128]]
    torch.testing.assert_close(scales, torch.tensor([2 / 127, 1.0]))


def test_a_static_scale_cuts_off_what_lies_outside() -> None:
    static = StaticInput(scale=0.5, zero_point=128 - 28)

    values = quantize_static(torch.tensor([[0.0, 1.0, -50.0, 77.0, 90.0, -60.0, 0.75]]), static)

    assert values.tolist() == [[100, 102, 0, 254, 255, 0, 102]]


@given(rows=st.integers(1, 40), columns=st.integers(1, 70), seed=st.integers(0, 99))
def test_no_weight_is_further_off_than_half_a_step(rows: int, columns: int, seed: int) -> None:
    weight = random(rows, columns, seed=seed)

    layer = quantized(weight)

    off = (weight - layer.values * layer.scales.unsqueeze(1)).abs()
    assert bool((off <= layer.scales.unsqueeze(1) * 0.5001).all())
    whole = float(off.double().norm() / weight.double().norm())
    assert relative_error(weight, layer.values, layer.scales) == pytest.approx(
        whole, rel=1e-4, abs=1e-7
    )


def test_large_weights_are_quantised_in_pieces_like_small_ones() -> None:
    weight = random(300, 1024, dtype=torch.bfloat16)

    whole, first = quantized(weight), quantized(weight[:7])

    assert torch.equal(whole.values[:7], first.values)
    assert torch.equal(whole.scales[:7], first.scales)


@pytest.mark.parametrize("product", PRODUCTS)
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 130),
    outputs=st.sampled_from([1, 3, 16, 33, 100]),
    zero_point=st.sampled_from([0, 5, 128, 255]),
    seed=st.integers(0, 99),
)
@example(rows=3, inputs=1024, outputs=64, zero_point=128, seed=0)
def test_products_are_exact(
    product: type[Product], rows: int, inputs: int, outputs: int, zero_point: int, seed: int
) -> None:
    values = random_bytes(outputs, inputs, low=-128, high=128, seed=seed, dtype=torch.int8)
    x = random_bytes(rows, inputs, low=0, high=256, seed=seed + 1, dtype=torch.uint8)
    scales = random(outputs, seed=seed + 2).abs() + 0.1
    weight = Int8Weight(values, scales, None, StaticInput(1.0, zero_point))

    sums = product(weight)(x)  # type: ignore[call-arg] # of the classes, not of the protocol

    exact = (x.long() - zero_point) @ values.long().T
    assert torch.equal(sums, exact.float() * scales)


@NEEDS_VNNI
@pytest.mark.parametrize("inputs", [64, 1024, 3072, 8192])
def test_onednn_equals_torchs_product_of_integers(inputs: int) -> None:
    values = random_bytes(96, inputs, low=-127, high=128, seed=0, dtype=torch.int8)
    x = random_bytes(24, inputs, low=-127, high=128, seed=1, dtype=torch.int8)
    values[0], x[0] = 127, 127  # the largest sum there is
    shifted = (x.short() + 128).byte()

    sums = OneDnnProduct(Int8Weight(values, torch.ones(96), None))(shifted)

    # Kernels differ in what they sum up in integers: with AMX the shifted bytes, which are taken
    # back in float32. Above 2^24 that rounds, and once more the result.
    largest = (shifted.long() @ values.long().abs().T).max()
    rounding = float(largest) / 2**24 if largest >= 2**24 else 0.0
    torch.testing.assert_close(
        sums, torch._int_mm(x, values.T).float(), rtol=0, atol=math.ceil(rounding)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_layer_in_8_bits_is_near_the_one_in_float(dtype: torch.dtype, *, has_bias: bool) -> None:
    weight, x = random(64, 256, seed=1), random(9, 256, seed=2, dtype=dtype)
    bias = random(64, seed=3) if has_bias else None
    kernels = ReferenceKernels()

    got = kernels.linear(x, pack_int8(kernels, quantized(weight, bias)))

    expected = torch.nn.functional.linear(x.float(), weight, bias)
    assert got.dtype == dtype
    assert float((got.float() - expected).norm() / expected.norm()) < 0.015


@pytest.mark.parametrize("variant", runnable_variants())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_native_kernels_compute_layers_in_8_bits_as_the_reference(
    variant: str, dtype: torch.dtype
) -> None:
    weight, x = quantized(random(48, 160, seed=1), random(48, seed=2)), random(5, 160, dtype=dtype)
    native, reference = native_kernels(variant), ReferenceKernels()
    static = Int8Weight(weight.values, weight.scales, None, StaticInput(0.03, 130))

    for layer in (weight, static):
        got = native.linear(x, pack_int8(native, layer)).float()
        expected = reference.linear(x, pack_int8(reference, layer)).float()
        # Halves, which are frequent in bfloat16, may be rounded to another integer.
        assert float((got - expected).norm() / expected.norm()) < 0.003


def test_a_weight_is_held_once_when_its_layer_is_finished() -> None:
    outputs, inputs = 8192, 4096
    packing = ReferenceKernels().packing_int8(outputs, inputs, "cpu", is_static=False)
    rows = torch.ones(64, inputs, dtype=torch.int8)
    give_back_free_memory()
    before = resident_memory()
    for first in range(0, outputs, len(rows)):
        packing.put(first, rows)

    layer = packing.finish(torch.ones(outputs), None, None)

    give_back_free_memory()  # malloc may keep what is free, after other tests have freed as much
    assert resident_memory() - before < 1.5 * outputs * inputs
    assert layer(torch.ones(1, inputs)).shape == (1, outputs)


def test_a_token_of_no_numbers_gives_no_numbers_and_harms_no_other() -> None:
    layer = quantized(random(8, 16))
    x = random(3, 16)
    x[1, 4] = float("nan")

    got = Int8Linear(layer, FloatProduct(layer))(x)

    assert bool(got[1].isnan().all())
    assert bool(got[[0, 2]].isfinite().all())
