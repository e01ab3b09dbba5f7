"""The reference kernels against the formulas, written as plainly as can be."""

import pytest
import torch
from hypothesis import example, given

from tandem_engine.device import attention
from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.packing import pack
from tandem_engine.device.reference import kernels as reference
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.runtime import HeadNorms
from tests.unit.engine.attention_cases import TOLERANCE, Batch, attend, batches, random, turned

KERNELS = ReferenceKernels()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 48), (3, 4, 16), (1, 8)])
def test_rms_norm_is_x_over_its_root_mean_square(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], seed=1, dtype=dtype)

    normed = KERNELS.rms_norm(x, weight, 1e-6)

    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert normed.dtype == dtype
    torch.testing.assert_close(
        normed.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


def test_half_precision_norms_do_not_overflow() -> None:
    x = torch.full((2, 64), 1000.0, dtype=torch.float16)  # 1000² is more than float16 holds

    normed = KERNELS.rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-6)

    torch.testing.assert_close(normed, torch.ones(2, 64, dtype=torch.float16))


def test_add_rms_norm_returns_the_norm_of_the_sum_and_the_sum() -> None:
    x, residual, weight = random(5, 32), random(5, 32, seed=1), random(32, seed=2)

    normed, new_residual = KERNELS.add_rms_norm(x, residual, weight, 1e-5)

    torch.testing.assert_close(new_residual, random(5, 32) + random(5, 32, seed=1))
    torch.testing.assert_close(normed, KERNELS.rms_norm(new_residual, weight, 1e-5))
    torch.testing.assert_close(residual, random(5, 32, seed=1))


def test_silu_mul_gates_the_second_half_by_the_first() -> None:
    gate, up = random(5, 12), random(5, 12, seed=1)

    result = KERNELS.silu_mul(torch.cat((gate, up), -1))

    torch.testing.assert_close(result, gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_multiplies_by_the_transpose(*, has_bias: bool) -> None:
    x, weight = random(5, 12), random(7, 12, seed=1)
    bias = random(7, seed=2) if has_bias else None

    result = KERNELS.linear(x, pack(KERNELS, weight, bias))

    torch.testing.assert_close(result, x @ weight.T + (bias if bias is not None else 0))


def test_attention_is_prepared_by_norm_and_turn_and_each_token_is_stored_in_its_slot() -> None:
    block_size, heads, kv_heads, head_dim = 4, 3, 2, 8
    metadata = build_attention_metadata(
        query_lens=[1, 3],
        context_lens=[6, 5],
        block_tables=[[2, 0], [3, 1, 4]],
        block_size=block_size,
    )
    slots = [(0, 1), (3, 2), (3, 3), (1, 0)]  # positions 5, then 2, 3, 4
    angles = random(9, head_dim // 2)
    rope = torch.cat((angles.cos(), angles.sin()), 1)
    qkv = random(4, (heads + 2 * kv_heads) * head_dim, seed=1)
    norms = HeadNorms(random(head_dim, seed=2), random(head_dim, seed=3), 1e-6)
    k_cache, v_cache = torch.zeros(2, 5, kv_heads, block_size, head_dim).unbind()
    q, k, v = torch.split(qkv.view(4, -1, head_dim), [heads, kv_heads, kv_heads], dim=1)
    q = turned(KERNELS.rms_norm(q, norms.q, norms.eps), angles[[5, 2, 3, 4]])
    k = turned(KERNELS.rms_norm(k, norms.k, norms.eps), angles[[5, 2, 3, 4]])

    got = KERNELS.prepare_attention(qkv, rope, k_cache, v_cache, metadata, norms=norms)

    assert metadata.positions.tolist() == [5, 2, 3, 4]
    torch.testing.assert_close(got, q)
    for token, (block, offset) in enumerate(slots):
        torch.testing.assert_close(k_cache[block, :, offset], k[token])
        torch.testing.assert_close(v_cache[block, :, offset], v[token])
    assert int(k_cache.count_nonzero()) == k.numel()


def assert_attends(batch: Batch) -> None:
    out, expected = attend(KERNELS, batch)
    assert out.dtype == batch.dtype
    tolerance = TOLERANCE[batch.dtype]
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@given(batches(dtypes=DTYPES))
@example(Batch(rows=((1, 0),)))
@example(Batch(rows=((1, 3), (1, 4), (1, 200))))
@example(Batch(rows=((7, 0), (1, 9), (5, 3))))  # a chunk of one token between others
def test_paged_attention_equals_plain_attention_of_each_row(batch: Batch) -> None:
    assert_attends(batch)


def test_a_long_chunk_attends_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TILE_TOKENS", 4)

    assert_attends(Batch(rows=((1, 7), (11, 0), (13, 5), (6, 9), (9, 1))))


def test_decodes_gather_long_contexts_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "GATHER_BYTES", 3 * 2 * 4 * 8 * 4)  # three splits

    assert_attends(Batch(rows=((1, 30), (1, 2), (1, 17))))


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((1, 1, 8), 1000.0)
    cache = torch.full((2, 1, 4, 8), 1000.0)
    metadata = build_attention_metadata(
        query_lens=[1], context_lens=[6], block_tables=[[0, 1]], block_size=4
    )

    out = KERNELS.paged_attention(q, cache, cache, metadata, 1.0)

    torch.testing.assert_close(out, torch.full((1, 8), 1000.0))


def test_blocks_that_a_row_holds_in_advance_are_not_read() -> None:
    metadata = build_attention_metadata(
        query_lens=[1, 2], context_lens=[3, 4], block_tables=[[5, 9, 7], [2, 8]], block_size=4
    )

    assert metadata.decodes is not None
    assert metadata.decodes.blocks.tolist() == [5]
    assert [chunk.blocks.tolist() for chunk in metadata.chunks] == [[2]]


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "block_tables"),
    [
        pytest.param([1], [5], [[0]], id="too few blocks for the context"),
        pytest.param([3], [2], [[0]], id="more new tokens than context"),
        pytest.param([0], [2], [[0]], id="no new token"),
        pytest.param([1, 1], [2], [[0]], id="lists of different lengths"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    query_lens: list[int], context_lens: list[int], block_tables: list[list[int]]
) -> None:
    with pytest.raises(ValueError, match="this is a bug"):
        build_attention_metadata(
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=block_tables,
            block_size=4,
        )
