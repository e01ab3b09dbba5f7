"""The kernels of an NPU over operators on the CPU: results, and the rules that a card enforces."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from torch import Tensor

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.npu.kernels import NpuKernels
from tandem_engine.device.packing import pack, pack_int8
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.runtime import HeadNorms, Kernels
from tandem_engine.quantization.int8 import Int8Weight, StaticInput, quantize_rows
from tests.npu.called import Called
from tests.npu.operators import CardError, any_size, operators_on_cpu
from tests.unit.engine.attention_cases import TOLERANCE, Batch, attend, batches, random

NPU, REFERENCE = NpuKernels(), ReferenceKernels()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KERNELS: list[Kernels] = [NPU, REFERENCE]


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    with operators_on_cpu():
        yield


def assert_close(got: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_gates_are_those_of_the_reference(dtype: torch.dtype) -> None:
    x, residual = random(5, 48, dtype=dtype), random(5, 48, seed=1, dtype=dtype)
    weight = random(48, seed=2, dtype=dtype)

    assert_close(NPU.rms_norm(x, weight, 1e-6), REFERENCE.rms_norm(x, weight, 1e-6))
    pairs = [each.add_rms_norm(x, residual, weight, 1e-6) for each in KERNELS]
    for got, expected in zip(*pairs, strict=True):
        assert_close(got, expected)
    assert_close(NPU.silu_mul(x), REFERENCE.silu_mul(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_multiplies_by_the_transpose(dtype: torch.dtype, *, has_bias: bool) -> None:
    x, weight = random(5, 12, dtype=dtype), random(7, 12, seed=1, dtype=dtype)
    bias = random(7, seed=2, dtype=dtype) if has_bias else None

    got, expected = (each.linear(x, pack(each, weight, bias)) for each in KERNELS)

    assert_close(got, expected)


def test_a_head_that_is_tied_embeds() -> None:
    table, ids = random(9, 4), torch.tensor([3, 0, 8])

    torch.testing.assert_close(NPU.embedding(ids, table), table[ids])
    torch.testing.assert_close(NPU.embedding(ids, pack(NPU, table)), table[ids])


def test_what_other_kernels_packed_is_refused() -> None:
    packed = pack(REFERENCE, random(7, 12))

    with pytest.raises(TypeError, match="PlainLinear was packed by other kernels"):
        NPU.linear(random(5, 12), packed)
    with pytest.raises(TypeError, match="PlainLinear holds no embeddings"):
        NPU.embedding(torch.tensor([0]), packed)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    "static", [None, StaticInput(0.03, 128), StaticInput(0.03, 101)], ids=["tokens", "0", "-27"]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_eight_bits_give_what_the_reference_gives(
    static: StaticInput | None, dtype: torch.dtype, *, has_bias: bool
) -> None:
    x, weight = random(5, 32, dtype=dtype), random(7, 32, seed=1)
    bias = random(7, seed=2) if has_bias else None
    layer = int8(weight, bias, static)

    got, expected = (each.linear(x, pack_int8(each, layer)) for each in KERNELS)

    assert_close(got, expected)


def int8(weight: Tensor, bias: Tensor | None, static: StaticInput | None) -> Int8Weight:
    values, scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
    quantize_rows(weight, values=values, scales=scales)
    if static is not None:
        scales *= static.scale
    return Int8Weight(values, scales, bias, static)


STATICS = pytest.mark.parametrize(
    "static", [None, StaticInput(0.03, 101)], ids=["tokens", "static"]
)


@STATICS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norm_and_quantisation_are_one_operator(
    static: StaticInput | None, dtype: torch.dtype
) -> None:
    x, residual = random(5, 32, dtype=dtype), random(5, 32, seed=1, dtype=dtype)
    weight = random(32, seed=2, dtype=dtype)
    layer = int8(random(7, 32, seed=3), None, static)

    with Called() as called:
        got, total = NPU.norm_linear(x, residual, weight, 1e-6, pack_int8(NPU, layer))

    packed = pack_int8(REFERENCE, layer)
    expected, expected_total = REFERENCE.norm_linear(x, residual, weight, 1e-6, packed)
    assert_close(total, expected_total)
    assert_close(got, expected)
    kind = "dynamic_quant" if static is None else "quant"
    assert called.names == [f"npu_add_rms_norm_{kind}", "npu_quant_matmul"]


@STATICS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gate_and_quantisation_are_one_operator(
    static: StaticInput | None, dtype: torch.dtype
) -> None:
    gate_up, layer = random(5, 64, dtype=dtype), int8(random(7, 32, seed=3), None, static)

    with Called() as called:
        got = NPU.silu_mul_linear(gate_up, pack_int8(NPU, layer))

    expected = REFERENCE.silu_mul_linear(gate_up.float(), pack_int8(REFERENCE, layer))
    assert got.dtype == dtype
    # 8 bits round by up to 1 / 254 of the largest input, and the reference gates in float32.
    assert (got.float() - expected).abs().max() < 0.02 * expected.abs().max()
    quantised = ["npu_dequant_swiglu_quant"] if static is None else ["npu_swiglu", "npu_quantize"]
    assert called.names == [*quantised, "npu_quant_matmul"]


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_first_norm_has_nothing_to_add(kernels: Kernels) -> None:
    x, weight = random(5, 32, dtype=torch.bfloat16), random(32, seed=2, dtype=torch.bfloat16)
    packed = pack_int8(kernels, int8(random(7, 32, seed=3), None, None))

    y, total = kernels.norm_linear(x, None, weight, 1e-6, packed)

    assert total is x
    assert_close(y, kernels.linear(kernels.rms_norm(x, weight, 1e-6), packed))


@STATICS
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_so_through_fused_operators(
    static: StaticInput | None, bad: float
) -> None:
    x, gate_up = random(3, 32, dtype=torch.bfloat16), random(3, 64, dtype=torch.bfloat16)
    x[1, 5] = gate_up[1, 5] = bad
    packed = pack_int8(NPU, int8(random(7, 32, seed=1), None, static))
    weight = torch.ones(32, dtype=torch.bfloat16)

    normed, total = NPU.norm_linear(x, random(3, 32, seed=1, dtype=x.dtype), weight, 1e-6, packed)

    for y in (normed, total, NPU.silu_mul_linear(gate_up, packed)):
        assert y.isfinite().all(dim=1).tolist() == [True, False, True]


@STATICS
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_so_in_eight_bits(
    static: StaticInput | None, bad: float
) -> None:
    x = random(3, 32, dtype=torch.bfloat16)
    x[1, 5] = bad

    y = NPU.linear(x, pack_int8(NPU, int8(random(7, 32, seed=1), None, static)))

    assert y.isfinite().all(dim=1).tolist() == [True, False, True]


@given(batches(dtypes=DTYPES))
@example(Batch(rows=((1, 0),)))
@example(Batch(rows=((1, 3), (1, 4), (1, 200))))
@example(Batch(rows=((7, 0), (1, 9), (5, 3))))  # a chunk of one token between others
def test_attention_of_decodes_and_chunks_in_one_call_is_that_of_each_row(batch: Batch) -> None:
    with any_size():
        got, expected = attend(NPU, batch)

    tolerance = TOLERANCE[batch.dtype]
    torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)


@given(batches(dtypes=[torch.float32]))
def test_queries_keys_and_values_are_prepared_as_the_reference_does(batch: Batch) -> None:
    def prepared(kernels: Kernels, norms: HeadNorms | None) -> tuple[Tensor, Tensor]:
        metadata = build_attention_metadata(
            query_lens=[new for new, _ in batch.rows],
            context_lens=[new + before for new, before in batch.rows],
            block_tables=tables,
            block_size=batch.block_size,
        )
        caches = torch.full(shape, torch.nan)
        keys, values = caches
        q = kernels.prepare_attention(qkv.clone(), rope, keys, values, metadata, norms=norms)
        return q, caches

    blocks = [-(-(new + before) // batch.block_size) for new, before in batch.rows]
    ids = iter(range(sum(blocks)))
    tables = [[next(ids) for _ in range(count)] for count in blocks]
    shape = (2, sum(blocks), batch.kv_heads, batch.block_size, batch.head_dim)
    tokens = sum(new for new, _ in batch.rows)
    qkv = random(tokens, (batch.heads + 2 * batch.kv_heads) * batch.head_dim, seed=batch.seed)
    rope = random(max(new + before for new, before in batch.rows), batch.head_dim, seed=1)
    weights = HeadNorms(random(batch.head_dim, seed=2), random(batch.head_dim, seed=3), 1e-6)

    for norms in (None, weights):
        (q, caches), (expected_q, expected_caches) = (prepared(each, norms) for each in KERNELS)
        assert_close(q, expected_q)
        torch.testing.assert_close(caches, expected_caches, equal_nan=True)


def call(**changed: Any) -> None:
    """Attend as a card takes it, but for what is changed."""
    batch = Batch(rows=((1, 200), (7, 0)), head_dim=128, block_size=128, dtype=torch.bfloat16)
    attend(NPU, replace(batch, **changed))


def test_a_card_takes_what_it_documents() -> None:
    call()
    call(dtype=torch.float16, block_size=16)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"head_dim": 64}, "heads of 64: 128 in TND"),
        ({"block_size": 24}, "blocks of 24: a multiple of 16 up to 1024"),
        ({"block_size": 2048}, "blocks of 2048: a multiple of 16 up to 1024"),
        ({"dtype": torch.float32}, "queries are torch.float32: float16 or bfloat16"),
    ],
)
def test_what_a_card_refuses_is_refused_here(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CardError, match=sentence):
        call(**changed)
