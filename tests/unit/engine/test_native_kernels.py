"""The kernels in C++ against plain formulas and the reference: every variant that this CPU runs."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.cpu.native.linear import Int8PanelLinear, PanelLinear
from tandem_engine.device.packing import pack, pack_int8
from tandem_engine.device.reference.kernels import PlainLinear, ReferenceKernels
from tandem_engine.device.runtime import HeadNorms
from tandem_engine.quantization.int8 import Int8Weight
from tests.unit.engine.attention_cases import Batch, attend, batches, random
from tests.unit.engine.native import native_kernels, threads_of

REFERENCE = ReferenceKernels()
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 1000)


@pytest.fixture(params=runnable_variants())
def kernels(request: pytest.FixtureRequest) -> NativeKernels:
    return native_kernels(request.param)


@pytest.fixture(params=[1, 2, 5])
def num_threads(request: pytest.FixtureRequest, kernels: NativeKernels) -> Iterator[int]:
    with threads_of(kernels, request.param):
        yield request.param


def assert_near(got: Tensor, expected: Tensor, *, scale: float = 1.0) -> None:
    tolerance = TOLERANCE[got.dtype] * scale
    torch.testing.assert_close(got.double(), expected.double(), atol=tolerance, rtol=tolerance)


@given(
    rows=st.integers(1, 30),
    inputs=st.sampled_from([2, 6, 32, 48, 64, 130, 600]),
    outputs=st.sampled_from([1, 7, 16, 31, 32, 33, 64, 100, 257]),
    has_bias=st.booleans(),
    dtype=dtypes,
    seed=seeds,
)
@example(rows=700, inputs=640, outputs=96, has_bias=True, dtype=torch.bfloat16, seed=0)
@example(rows=700, inputs=640, outputs=96, has_bias=True, dtype=torch.float32, seed=0)
def test_linear_multiplies_by_the_transpose(
    kernels: NativeKernels,
    *,
    rows: int,
    inputs: int,
    outputs: int,
    has_bias: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    x = random(rows, inputs, seed=seed, dtype=dtype)
    weight = random(outputs, inputs, seed=seed + 1).div(inputs**0.5).to(dtype)
    bias = random(outputs, seed=seed + 2, dtype=dtype) if has_bias else None

    got = kernels.linear(x, pack(kernels, weight, bias))

    expected = x.double() @ weight.double().T
    assert_near(got, expected + (0 if bias is None else bias.double()))


@pytest.mark.usefixtures("num_threads")
@given(
    rows=st.integers(2, 70),
    inputs=st.sampled_from([64, 132]),
    dtype=st.sampled_from([*TOLERANCE, torch.int8]),
    seed=seeds,
)
@example(rows=70, inputs=1024, dtype=torch.bfloat16, seed=0)
def test_a_row_is_the_same_whatever_rows_are_beside_it(
    kernels: NativeKernels, *, rows: int, inputs: int, dtype: torch.dtype, seed: int
) -> None:
    weight = random(40, inputs, seed=seed + 1)
    if dtype == torch.int8:
        x = random(rows, inputs, seed=seed, dtype=torch.bfloat16)
        as_bytes = weight.mul(40).clamp(-128, 127).to(torch.int8)
        packed = pack_int8(kernels, Int8Weight(as_bytes, torch.ones(40), None))
    else:
        x = random(rows, inputs, seed=seed, dtype=dtype)
        packed = pack(kernels, weight.to(dtype))

    together = kernels.linear(x, packed)

    alone = [kernels.linear(x[at : at + 1], packed) for at in range(rows)]
    assert torch.equal(together, torch.cat(alone))


@given(
    vocab=st.sampled_from([1, 31, 64, 100]),
    width=st.sampled_from([2, 32, 66]),
    dtype=dtypes,
    seed=seeds,
)
def test_rows_of_a_packed_weight_are_an_embedding(
    kernels: NativeKernels, *, vocab: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    table = random(vocab, width, seed=seed, dtype=dtype)
    ids = torch.randint(0, vocab, (9,), generator=torch.Generator().manual_seed(seed))

    assert torch.equal(kernels.embedding(ids, pack(kernels, table)), table[ids])


@pytest.mark.usefixtures("num_threads")
@given(
    outputs=st.integers(1, 150),
    inputs=st.sampled_from([8, 2048]),  # few enough for one thread, and enough for several
    cuts=st.lists(st.integers(0, 150)),
    seed=seeds,
    dtype=dtypes,
)
@example(outputs=150, inputs=2048, cuts=[5], seed=0, dtype=torch.bfloat16)
def test_rows_come_in_any_pieces_and_order(
    kernels: NativeKernels,
    *,
    outputs: int,
    inputs: int,
    cuts: list[int],
    seed: int,
    dtype: torch.dtype,
) -> None:
    weight = random(outputs, inputs, seed=seed)
    bounds = sorted({0, outputs, *(cut for cut in cuts if cut < outputs)})
    pieces = list(pairwise(bounds))
    Random(seed).shuffle(pieces)
    packing = kernels.packing(outputs, inputs, dtype, "cpu")
    packing_int8 = kernels.packing_int8(outputs, inputs, "cpu", is_static=False)
    as_bytes = weight.mul(40).clamp(-128, 127).to(torch.int8)

    for low, high in pieces:
        packing.put(low, weight[low:high])
        packing_int8.put(low, as_bytes[low:high])

    got, whole = packing.finish(None), pack(kernels, weight.to(dtype))
    assert isinstance(got, PanelLinear)
    assert isinstance(whole, PanelLinear)
    assert torch.equal(got.panels, whole.panels)
    got_int8 = packing_int8.finish(torch.ones(outputs), None, None)
    whole_int8 = pack_int8(kernels, Int8Weight(as_bytes, torch.ones(outputs), None))
    assert isinstance(got_int8, Int8PanelLinear)
    assert isinstance(whole_int8, Int8PanelLinear)
    assert torch.equal(got_int8.panels, whole_int8.panels)
    assert torch.equal(got_int8.sums, as_bytes.sum(dim=1).int())


def test_the_weight_is_not_needed_once_it_is_packed(kernels: NativeKernels) -> None:
    weight, x = random(64, 32), random(3, 32, seed=1)
    expected = x @ weight.T
    packed = pack(kernels, weight)

    weight.untyped_storage().resize_(0)

    torch.testing.assert_close(kernels.linear(x, packed), expected)


@given(
    rows=st.integers(1, 9),
    width=st.sampled_from([1, 8, 15, 64, 80, 1000]),
    dtype=dtypes,
    seed=seeds,
)
def test_norms_equal_the_reference(
    kernels: NativeKernels, *, rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    x, residual = random(2, rows, width, seed=seed, dtype=dtype).unbind()
    weight = random(width, seed=seed + 1, dtype=dtype)

    normed, added = kernels.add_rms_norm(x, residual, weight, 1e-6)

    assert torch.equal(added, x + residual)
    assert_near(normed, REFERENCE.rms_norm(added, weight, 1e-6))
    assert_near(kernels.rms_norm(x, weight, 1e-6), REFERENCE.rms_norm(x, weight, 1e-6))


@given(
    rows=st.integers(1, 9), width=st.sampled_from([1, 8, 50, 64, 1000]), dtype=dtypes, seed=seeds
)
def test_silu_mul_equals_the_reference(
    kernels: NativeKernels, *, rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    gate_up = random(rows, 2 * width, seed=seed, dtype=dtype) * 3

    assert_near(kernels.silu_mul(gate_up), REFERENCE.silu_mul(gate_up), scale=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_of_large_values_is_the_value_or_nothing(
    kernels: NativeKernels, dtype: torch.dtype
) -> None:
    gates = torch.tensor([[-1e30, -200.0, 0.0, 200.0, 1e30]], dtype=dtype)

    got = kernels.silu_mul(torch.cat((gates, torch.ones_like(gates)), 1))

    torch.testing.assert_close(got, gates.clamp(min=0))


@given(
    shape=st.sampled_from([(1, 1), (2, 1), (4, 4), (16, 8), (5, 1)]),
    head_dim=st.sampled_from([2, 8, 32, 64, 80, 128]),
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 20)), min_size=1, max_size=4),
    has_norms=st.booleans(),
    dtype=dtypes,
    seed=seeds,
)
def test_attention_is_prepared_as_by_the_reference(
    kernels: NativeKernels,
    *,
    shape: tuple[int, int],
    head_dim: int,
    lengths: list[tuple[int, int]],
    has_norms: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    heads, kv_heads = shape
    lengths = sorted(lengths)
    metadata = build_attention_metadata(
        query_lens=[new for new, _ in lengths],
        context_lens=[new + before for new, before in lengths],
        block_tables=[range(7 * row, 7 * row + 7) for row in range(len(lengths))],
        block_size=4,
    )
    angles = random(32, head_dim // 2, seed=seed)
    rope = torch.cat((angles.cos(), angles.sin()), 1).to(dtype)
    width = (heads + 2 * kv_heads) * head_dim
    qkv = random(metadata.num_tokens, width, seed=seed, dtype=dtype)
    norms = None
    if has_norms:
        weights = random(2, head_dim, seed=seed, dtype=dtype)
        norms = HeadNorms(weights[0], weights[1], 1e-6)
    expected, got = torch.zeros(2, 2, 28, kv_heads, 4, head_dim, dtype=dtype).unbind()

    expected_q = REFERENCE.prepare_attention(
        qkv.clone(), rope, expected[0], expected[1], metadata, norms=norms
    )
    q = kernels.prepare_attention(qkv.clone(), rope, got[0], got[1], metadata, norms=norms)

    # The reference rounds after each of the operations that are one here.
    assert_near(q, expected_q, scale=3)
    assert_near(got, expected, scale=3)


def assert_attends(kernels: NativeKernels, batch: Batch) -> None:
    out, expected = attend(kernels, batch, elsewhere=torch.nan)
    assert_near(out, expected)


@given(batch=batches(dtypes=DTYPES, head_dims=[2, 8, 32, 40, 64, 80, 128]))
@example(batch=Batch(rows=((1, 0),)))
@example(batch=Batch(rows=((3, 0), (2, 70)), head_dim=64))
@example(batch=Batch(rows=((1, 3000), (1, 2), (1, 640)), head_dim=32, block_size=16))
@example(batch=Batch(rows=((300, 0), (100, 500)), head_dim=64, block_size=128))
@example(batch=Batch(rows=((1, 700), (70, 9)), head_dim=80, heads=16, kv_heads=1))
@example(batch=Batch(rows=((1, 700), (70, 9)), heads=12, kv_heads=2, dtype=torch.bfloat16))
@example(batch=Batch(rows=((200, 0),), heads=128, kv_heads=1, head_dim=8))
def test_attention_equals_plain_attention_whatever_stands_behind_the_context(
    kernels: NativeKernels, *, batch: Batch
) -> None:
    assert_attends(kernels, batch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_gives_the_same(
    kernels: NativeKernels, num_threads: int, dtype: torch.dtype
) -> None:
    rows = ((1, 2500), (1, 3), (1, 900), (2, 700), (4, 2500), (90, 300))
    assert_attends(kernels, Batch(rows=rows, head_dim=64, block_size=16, dtype=dtype))

    x, weight = random(70, 256, dtype=dtype), random(500, 256, seed=1).div(16).to(dtype)
    got = kernels.linear(x, pack(kernels, weight))
    assert_near(got, x.double() @ weight.double().T)
    assert num_threads == kernels.library.num_threads


def test_large_scores_do_not_overflow(kernels: NativeKernels) -> None:
    metadata = build_attention_metadata(
        query_lens=[1, 6], context_lens=[6, 6], block_tables=[[0, 1], [2, 3]], block_size=4
    )
    q, cache = torch.full((7, 1, 8), 1000.0), torch.full((4, 1, 4, 8), 1000.0)

    out = kernels.paged_attention(q, cache, cache, metadata, 1.0)

    torch.testing.assert_close(out, torch.full((7, 8), 1000.0))


@pytest.mark.parametrize("new", [1, 9])
def test_what_is_no_number_in_a_query_is_not_hidden(kernels: NativeKernels, new: int) -> None:
    metadata = build_attention_metadata(
        query_lens=[new], context_lens=[new], block_tables=[[0, 1, 2]], block_size=4
    )
    q, cache = torch.ones(new, 1, 8), torch.ones(3, 1, 4, 8)
    q[-1, 0, 3] = torch.nan

    out = kernels.paged_attention(q, cache, cache, metadata, 1.0)

    assert out[-1].isnan().all()
    torch.testing.assert_close(out[:-1], torch.ones(new - 1, 8))


def test_bfloat16_is_rounded_to_even_and_keeps_what_is_no_number(kernels: NativeKernels) -> None:
    tie, inf = 1 + 2**-8, float("inf")
    x = torch.tensor([[tie, -tie, 3 * tie, inf, -inf, torch.nan, 1e-30, 3e38]]).bfloat16()
    zeros = torch.zeros_like(x)

    _, added = kernels.add_rms_norm(x, zeros + 2**-9, torch.ones(8).bfloat16(), 1e-6)

    torch.testing.assert_close(added, x + 2**-9, equal_nan=True, atol=0, rtol=0)


def dequantized(quantized: tuple[Tensor, Tensor]) -> Tensor:
    values, scales = quantized
    assert values.dtype == torch.uint8
    return (values.double() - 128) * scales.double()[:, None]


@given(
    rows=st.integers(1, 9), width=st.sampled_from([1, 8, 50, 64, 1000]), dtype=dtypes, seed=seeds
)
def test_quantised_rows_are_within_half_a_step(
    kernels: NativeKernels, *, rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    x = random(rows, width, seed=seed, dtype=dtype) * 7
    weight = random(width, seed=seed + 1, dtype=dtype)
    gate_up = random(rows, 2 * width, seed=seed, dtype=dtype)
    plain = x.float(), weight.float(), gate_up.float()

    cases = [
        (kernels.quantize(x), plain[0]),
        (kernels.quantize_norm(x, weight, 1e-6), REFERENCE.rms_norm(plain[0], plain[1], 1e-6)),
        (kernels.quantize_gated(gate_up), REFERENCE.silu_mul(plain[2])),
    ]

    for quantized, exact in cases:
        step = exact.abs().amax(1, keepdim=True).double() / 127
        error = (dequantized(quantized) - exact.double()).abs()
        assert (error <= 0.5001 * step + 1e-6).all()


@given(
    rows=st.integers(1, 30),
    inputs=st.sampled_from([4, 64, 100, 600]),
    outputs=st.sampled_from([1, 16, 31, 33, 100, 257]),
    has_bias=st.booleans(),
    dtype=dtypes,
    seed=seeds,
)
def test_w8a8_products_are_exact_up_to_their_scales(
    kernels: NativeKernels,
    *,
    rows: int,
    inputs: int,
    outputs: int,
    has_bias: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-128, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    scales = random(outputs, seed=seed).abs() * 1e-3
    bias = random(outputs, seed=seed, dtype=dtype) if has_bias else None
    x, x_scales = kernels.quantize(random(rows, inputs, seed=seed, dtype=dtype))

    packed = pack_int8(kernels, Int8Weight(weight, scales, bias))
    assert isinstance(packed, Int8PanelLinear)
    got = kernels.linear_int8(x, x_scales, packed, dtype)

    integers = (x.double() - 128) @ weight.double().T
    expected = integers * x_scales.double()[:, None] * scales.double()
    assert_near(got, expected + (0 if bias is None else bias.double()), scale=0.5)


def test_w8a8_products_of_the_largest_values_do_not_saturate(kernels: NativeKernels) -> None:
    weight, x = torch.full((40, 64), -128, dtype=torch.int8), torch.full((3, 64), 255).byte()

    packed = pack_int8(kernels, Int8Weight(weight, torch.ones(40), None))
    assert isinstance(packed, Int8PanelLinear)
    got = kernels.linear_int8(x, torch.ones(3), packed, torch.float32)

    assert torch.equal(got, torch.full((3, 40), -128.0 * 127 * 64))


def test_a_row_of_zeros_is_quantised_to_zeros(kernels: NativeKernels) -> None:
    assert not dequantized(kernels.quantize(torch.zeros(2, 40))).any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [0, 37, 99])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_is_not_finite_is_not_hidden_by_quantising_it(
    kernels: NativeKernels, dtype: torch.dtype, at: int, bad: float
) -> None:
    x, gate_up = random(2, 100, dtype=dtype), random(2, 200, dtype=dtype).abs()
    x[0, at] = gate_up[0, 100 + at] = bad
    weight = torch.ones(100, dtype=dtype)

    for values, scales in (
        kernels.quantize(x),
        kernels.quantize_norm(x, weight, 1e-6),
        kernels.quantize_gated(gate_up),
    ):
        product = kernels.linear_int8(values, scales, packed_ones(kernels), dtype)
        assert not product[0].isfinite().any()
        assert product[1].isfinite().all()


def packed_ones(kernels: NativeKernels) -> Int8PanelLinear:
    weight = Int8Weight(torch.ones(5, 100, dtype=torch.int8), torch.ones(5), None)
    packed = pack_int8(kernels, weight)
    assert isinstance(packed, Int8PanelLinear)
    return packed


def test_other_dtypes_go_to_the_reference(kernels: NativeKernels) -> None:
    x, weight = random(3, 32, dtype=torch.float64), random(8, 32, seed=1, dtype=torch.float64)

    packed = pack(kernels, weight)

    assert isinstance(packed, PlainLinear)
    assert torch.equal(kernels.linear(x, packed), x @ weight.T)
    x, norm = x.half(), torch.ones(32, dtype=torch.float16)
    assert torch.equal(kernels.rms_norm(x, norm, 1e-6), REFERENCE.rms_norm(x, norm, 1e-6))
