"""The KV cache in 8 bits: what stands in it, and who reads it; `test_runner` moves its blocks."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.runtime import HeadNorms, Kernels
from tests.unit.engine.attention_cases import Batch, attend, batches, cache_full_of, random
from tests.unit.engine.native import native_kernels

REFERENCE = ReferenceKernels()
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 2e-2}


@pytest.fixture(params=[*runnable_variants(), "reference"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return REFERENCE if request.param == "reference" else native_kernels(request.param)


def empty_cache(batch: Batch, num_blocks: int = 3) -> Tensor:
    return cache_full_of(0, batch, num_blocks)


@given(
    head_dim=st.sampled_from([4, 8, 64, 80]),
    block_size=st.sampled_from([1, 4, 16]),
    spread=st.sampled_from([1e-6, 1.0, 1e4]),
    seed=st.integers(0, 100),
)
def test_what_is_written_comes_back_within_half_a_step_of_its_token_and_head(
    head_dim: int, block_size: int, spread: float, seed: int
) -> None:
    batch = Batch(rows=(), head_dim=head_dim, block_size=block_size, is_cache_int8=True)
    cache = empty_cache(batch)
    rows = random(3 * block_size, 2, head_dim, seed=seed) * spread
    rows *= torch.tensor([1.0, 1e-3]).view(
        1, 2, 1
    )  # a small head does not take a large one's scale
    slots = torch.randperm(3 * block_size, generator=torch.Generator().manual_seed(seed))

    kv_int8.write(rows, cache, slots // block_size, slots % block_size)

    found = kv_int8.read_blocks(cache, torch.arange(3)).transpose(1, 2).flatten(0, 1)[slots]
    step = rows.abs().amax(-1, keepdim=True) / 127
    assert ((found - rows).abs() <= 0.501 * step).all()


def test_a_page_is_the_values_of_a_head_and_behind_them_its_scales() -> None:
    batch = Batch(rows=(), head_dim=4, block_size=2, kv_heads=1, is_cache_int8=True)
    cache = empty_cache(batch, 1)

    kv_int8.write(
        torch.tensor([[[127.0, -127, 1, 0]], [[254.0, 0, 0, -2]]]),
        cache,
        torch.tensor([0, 0]),
        torch.tensor([0, 1]),
    )

    page = cache.flatten()
    assert page[:8].tolist() == [127, -127, 1, 0, 127, 0, 0, -1]
    assert page[8:].view(torch.float32).tolist() == [1.0, 2.0]


@given(
    shape=st.sampled_from([(1, 1), (4, 4), (16, 8), (5, 1)]),
    head_dim=st.sampled_from([4, 8, 64, 80, 128]),
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 20)), min_size=1, max_size=4),
    has_norms=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_k_and_v_are_quantised_as_they_are_written(
    kernels: Kernels,
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
    weights = random(2, head_dim, seed=seed, dtype=dtype)
    norms = HeadNorms(weights[0], weights[1], 1e-6) if has_norms else None
    plain = torch.zeros(2, 28, kv_heads, 4, head_dim, dtype=dtype)
    batch = Batch(rows=(), head_dim=head_dim, kv_heads=kv_heads, is_cache_int8=True)
    caches = empty_cache(batch, 28), empty_cache(batch, 28)

    expected_q = REFERENCE.prepare_attention(
        qkv.clone(), rope, plain[0], plain[1], metadata, norms=norms
    )
    q = kernels.prepare_attention(qkv.clone(), rope, *caches, metadata, norms=norms)

    tolerance = 3 * TOLERANCE[dtype]  # the reference rounds after each operation
    torch.testing.assert_close(q, expected_q, atol=tolerance, rtol=tolerance)
    for cache, exact in zip(caches, plain.float(), strict=True):
        found = kv_int8.read_blocks(cache, torch.arange(28))
        largest = exact.abs().amax(-1, keepdim=True)
        assert ((found - exact).abs() <= (0.51 / 127 + tolerance) * largest + 1e-30).all()


@given(batch=batches(dtypes=DTYPES, head_dims=[4, 8, 32, 40, 64, 80, 128], is_cache_int8=True))
@example(batch=Batch(rows=((1, 0),), is_cache_int8=True))
@example(batch=Batch(rows=((3, 0), (2, 70)), head_dim=64, is_cache_int8=True))
@example(batch=Batch(rows=((1, 3000), (1, 640)), head_dim=32, block_size=16, is_cache_int8=True))
@example(batch=Batch(rows=((300, 0), (100, 500)), head_dim=64, block_size=128, is_cache_int8=True))
@example(batch=Batch(rows=((1, 700), (70, 9)), head_dim=80, heads=16, is_cache_int8=True))
@example(
    batch=Batch(
        rows=((1, 900), (70, 9)), head_dim=128, heads=12, dtype=torch.bfloat16, is_cache_int8=True
    )
)
def test_attention_reads_what_stands_in_the_blocks_and_nothing_behind_the_context(
    kernels: Kernels, *, batch: Batch
) -> None:
    # The reference wipes a block before its first token; what it would read here is just large.
    elsewhere = 50.0 if kernels is REFERENCE else torch.nan

    out, expected = attend(kernels, batch, elsewhere=elsewhere)

    tolerance = TOLERANCE[batch.dtype]
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("new", [1, 9])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("part", ["k", "v"])
def test_what_is_not_finite_in_k_or_v_is_not_hidden(
    kernels: Kernels, *, dtype: torch.dtype, new: int, bad: float, part: str
) -> None:
    metadata = build_attention_metadata(
        query_lens=[new], context_lens=[new], block_tables=[[0, 1, 2]], block_size=4
    )
    qkv = random(new, 24, dtype=dtype)
    qkv[-1, 13 if part == "k" else 21] = bad
    rope = torch.cat((torch.ones(9, 4), torch.zeros(9, 4)), 1).to(dtype)
    batch = Batch(rows=(), kv_heads=1, is_cache_int8=True)
    caches = empty_cache(batch), empty_cache(batch)

    q = kernels.prepare_attention(qkv, rope, *caches, metadata)
    out = kernels.paged_attention(q, *caches, metadata, 1.0)

    assert not out[-1].isfinite().any()


@pytest.mark.parametrize("variant", runnable_variants())
def test_what_is_no_number_in_a_query_is_not_hidden(variant: str) -> None:
    metadata = build_attention_metadata(
        query_lens=[1, 1], context_lens=[3, 3], block_tables=[[0], [1]], block_size=4
    )
    cache = cache_full_of(0.01, Batch(rows=(), kv_heads=1, is_cache_int8=True), 2)
    q = torch.ones(2, 1, 8).bfloat16()
    q[1, 0, 3] = torch.nan

    out = native_kernels(variant).paged_attention(q, cache, cache, metadata, 1.0)

    assert out[1].isnan().all()
    torch.testing.assert_close(out[0], torch.full((8,), 0.77).bfloat16())
