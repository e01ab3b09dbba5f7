"""The whole forward pass in one call, against the same model kernel by kernel in torch."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.device.runtime import Kernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.decoder import Decoder, KVCache, allocate_kv_cache
from tandem_engine.model.load_decoder import pack_model
from tandem_engine.model.parameters import Parameters, allocate_parameters, checkpoint_parts
from tandem_engine.model.rope import RopeDefault, RopeTable
from tandem_engine.quantization.scheme import AT_LOAD_SCHEME, FLOAT_SCHEME, Scheme
from tests.unit.engine.native import native_kernels, threads_of

BLOCK_SIZE = 4
VOCAB = 50
SHAPE: dict[str, Any] = {
    "architecture": "Qwen3ForCausalLM",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope": RopeDefault(theta=1e4),
    "tie_word_embeddings": True,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "qk_norm": True,
    "dtype": None,
}
SHAPES = {
    "norms of heads, tied": {},
    "biases, untied": {
        "qk_norm": False,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    },
    "one layer, one KV head": {"num_layers": 1, "num_kv_heads": 1, "head_dim": 24},
}


@pytest.fixture(params=runnable_variants())
def kernels(request: pytest.FixtureRequest) -> NativeKernels:
    return native_kernels(request.param)


@pytest.fixture(params=[1, 3])
def _num_threads(request: pytest.FixtureRequest, kernels: NativeKernels) -> Iterator[None]:
    with threads_of(kernels, request.param):
        yield


def parameters_of(
    config: DecoderConfig,
    kernels: Kernels,
    dtype: torch.dtype,
    scheme: Scheme,
    held_in: torch.dtype | None,
) -> Parameters:
    """Random ones, always the same; quantised where `scheme` says so."""
    parameters = allocate_parameters(
        config, dtype=dtype, device="cpu", kernels=kernels, scheme=scheme
    )
    generator = torch.Generator().manual_seed(0)
    for part in checkpoint_parts(parameters):
        spread = 1.0 if len(part.shape) == 1 else part.shape[1] ** -0.5
        part.take(torch.randn(part.shape, generator=generator).mul_(spread).to(held_in or dtype))
    return parameters


def decoder_of(
    kernels: Kernels,
    dtype: torch.dtype,
    scheme: Scheme = FLOAT_SCHEME,
    held_in: torch.dtype | None = None,
    **overrides: Any,
) -> Decoder:
    """Of weights that a checkpoint would hold in `held_in`, loaded as `dtype`."""
    config = DecoderConfig(**{**SHAPE, **overrides})
    rope = RopeTable(
        config.rope,
        head_dim=config.head_dim,
        num_positions=512,
        dtype=kernels.computed_in(dtype),
        device="cpu",
    )
    packed_model = pack_model(config, parameters_of(config, kernels, dtype, scheme, held_in), rope)
    return Decoder(config, packed_model, kernels)


def layout(rows: list[tuple[int, int]]) -> AttentionMetadata:
    need = [-(-(new + before) // BLOCK_SIZE) for new, before in rows]
    ids = list(range(sum(need)))
    return build_attention_metadata(
        query_lens=[new for new, _ in rows],
        context_lens=[new + before for new, before in rows],
        block_tables=[[ids.pop() for _ in range(count)] for count in need],
        block_size=BLOCK_SIZE,
    )


def cache_of(
    decoder: Decoder, metadata: AttentionMetadata, kv_dtype: torch.dtype | None = None
) -> KVCache:
    layout = decoder.cache_layout(BLOCK_SIZE, kv_dtype)
    cache = allocate_kv_cache(layout, num_blocks=len(metadata.blocks), device="cpu")
    generator = torch.Generator().manual_seed(1)
    if kv_dtype is None:
        cache.blocks.normal_(generator=generator)
        return cache
    for part in cache.blocks.flatten(0, 1):
        kv_int8.values_of(part).random_(-127, 128, generator=generator)
        kv_int8.scales_of(part).uniform_(0.01, 0.02, generator=generator)
    return cache


def compare(
    kernels: NativeKernels,
    dtype: torch.dtype,
    rows: list[tuple[int, int]],
    scheme: Scheme = FLOAT_SCHEME,
    kv_dtype: torch.dtype | None = None,
    **shape: Any,
) -> list[tuple[Tensor, Tensor]]:
    metadata = layout(rows)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCAB, (metadata.num_tokens,), generator=generator)
    desired = torch.randperm(metadata.num_tokens, generator=generator)[: 1 + len(rows)]
    native = decoder_of(kernels, dtype, scheme, **shape)
    reference = decoder_of(ReferenceKernels(), dtype, scheme, **shape)
    results: list[tuple[Tensor, Tensor]] = []
    with torch.inference_mode():
        for run, decoder in (
            (native.forward, native),
            (native.forward_by_kernels, native),
            (reference.forward, reference),
        ):
            cache = cache_of(decoder, metadata, kv_dtype)
            logits = run(tokens, cache, metadata, logits_rows=desired)
            assert logits.dtype == torch.float32
            results.append((logits, written(cache, metadata)))
    return results


def written(cache: KVCache, metadata: AttentionMetadata) -> Tensor:
    """K and V of the step's tokens."""
    if kv_int8.is_int8(cache.blocks):
        parts = cache.blocks.flatten(0, 1)
        everywhere = torch.arange(parts.shape[1])
        plain = torch.stack([kv_int8.read_blocks(part, everywhere) for part in parts])
        return plain[:, metadata.slot_blocks, :, metadata.slot_offsets]
    return cache.blocks[:, :, metadata.slot_blocks, :, metadata.slot_offsets]


def distance(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03), (torch.float16, 4e-3)]
)
@pytest.mark.usefixtures("_num_threads")
def test_one_call_gives_what_the_kernels_give_one_by_one(
    kernels: NativeKernels, dtype: torch.dtype, most: float, shape: dict[str, Any]
) -> None:
    rows = [(1, 5), (1, 300), (20, 0), (9, 17)]

    whole, by_kernels, expected = compare(kernels, dtype, rows, **shape)

    for got in (whole, by_kernels):
        assert distance(got[0], expected[0]) < most
        assert distance(got[1], expected[1]) < most


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 0.01), (torch.bfloat16, 0.1), (torch.float16, 0.05)]
)
@pytest.mark.usefixtures("_num_threads")
def test_one_call_in_8_bits_gives_what_the_kernels_give_one_by_one(
    kernels: NativeKernels, dtype: torch.dtype, most: float, shape: dict[str, Any]
) -> None:
    """As near as rounding allows: the seventh digit decides which integer an activation becomes."""
    rows = [(1, 5), (1, 300), (20, 0), (9, 17)]

    whole, by_kernels, expected = compare(kernels, dtype, rows, AT_LOAD_SCHEME, **shape)

    for got in (whole, by_kernels):
        assert distance(got[0], expected[0]) < most
        assert distance(got[1], expected[1]) < most


@pytest.mark.parametrize("scheme", [FLOAT_SCHEME, AT_LOAD_SCHEME], ids=["float", "w8a8"])
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 0.01), (torch.bfloat16, 0.1), (torch.float16, 0.05)]
)
@pytest.mark.usefixtures("_num_threads")
def test_one_call_with_a_cache_in_8_bits_gives_what_the_kernels_give_one_by_one(
    kernels: NativeKernels, dtype: torch.dtype, most: float, scheme: Scheme
) -> None:
    rows = [(1, 5), (1, 300), (20, 0), (9, 17)]

    whole, by_kernels, expected = compare(kernels, dtype, rows, scheme, torch.int8)

    for got in (whole, by_kernels):
        assert distance(got[0], expected[0]) < most
        assert distance(got[1], expected[1]) < most


def test_layers_in_8_bits_are_computed_in_one_call(kernels: NativeKernels) -> None:
    packed_model = decoder_of(kernels, torch.bfloat16, AT_LOAD_SCHEME).packed_model

    assert kernels.forward_pass(packed_model) is not None


@pytest.mark.parametrize("scheme", [FLOAT_SCHEME, AT_LOAD_SCHEME], ids=["float", "w8a8"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_not_finite_inside_a_layer_comes_out_in_its_own_row_alone(
    kernels: NativeKernels, dtype: torch.dtype, bad: float, scheme: Scheme
) -> None:
    decoder, metadata = decoder_of(kernels, dtype, scheme), layout([(1, 9), (1, 9), (9, 3)])
    tokens, desired = torch.arange(11), torch.tensor([0, 1, 10])
    sound, spoiled = (cache_of(decoder, metadata) for _ in range(2))
    begin, end = metadata.first_block[1:3]
    spoiled.blocks[0, 1, metadata.blocks[begin:end].tolist()] = bad  # V of the second row

    with torch.inference_mode():
        expected = decoder.forward(tokens, sound, metadata, logits_rows=desired)
        logits = decoder.forward(tokens, spoiled, metadata, logits_rows=desired)

    assert not logits[1].isfinite().any()
    assert expected.isfinite().all()
    assert torch.equal(logits[[0, 2]], expected[[0, 2]])


@settings(
    max_examples=settings().max_examples // 2,
)
@given(rows=st.lists(st.tuples(st.integers(1, 15), st.integers(0, 40)), min_size=1, max_size=6))
def test_steps_of_all_kinds_equal_the_reference(
    kernels: NativeKernels, *, rows: list[tuple[int, int]]
) -> None:
    rows = sorted(rows)

    whole, _, expected = compare(kernels, torch.float32, rows, num_layers=2)

    assert distance(whole[0], expected[0]) < 1e-5
    assert distance(whole[1], expected[1]) < 1e-5


def test_a_step_that_wants_no_logits_writes_the_cache_all_the_same(kernels: NativeKernels) -> None:
    decoder = decoder_of(kernels, torch.float32)
    metadata = layout([(9, 0)])
    tokens, nothing = torch.arange(9), torch.zeros(0, dtype=torch.int64)
    some, none = cache_of(decoder, metadata), cache_of(decoder, metadata)

    with torch.inference_mode():
        decoder.forward(tokens, some, metadata, logits_rows=torch.tensor([8]))
        logits = decoder.forward(tokens, none, metadata, logits_rows=nothing)

    assert logits.shape == (0, VOCAB)
    assert torch.equal(none.blocks, some.blocks)


def test_the_same_step_gives_the_same_bits(kernels: NativeKernels) -> None:
    decoder = decoder_of(kernels, torch.bfloat16)
    metadata = layout([(1, 90), (30, 3)])
    tokens, desired = torch.arange(31) % VOCAB, torch.tensor([0, 30])

    with torch.inference_mode():
        first, second = (
            decoder.forward(tokens, cache_of(decoder, metadata), metadata, logits_rows=desired)
            for _ in range(2)
        )

    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_float16_weights_are_computed_with_in_float32(
    kernels: NativeKernels, shape: dict[str, Any]
) -> None:
    """So what is rounded is K and V alone, where torch rounds every activation."""
    metadata, tokens = layout([(9, 0), (20, 0)]), torch.arange(29) % VOCAB
    desired = torch.tensor([8, 20, 28])
    half, full = torch.float16, torch.float32
    native, torchs = (
        decoder_of(kernels, half, **shape),
        decoder_of(ReferenceKernels(), half, **shape),
    )
    exact = decoder_of(ReferenceKernels(), full, held_in=half, **shape)

    with torch.inference_mode():
        got, plain, expected = (
            decoder.forward(tokens, cache_of(decoder, metadata), metadata, logits_rows=desired)
            for decoder in (native, torchs, exact)
        )

    assert kernels.is_native
    assert distance(got, expected) < 1e-3
    assert distance(got, expected) < distance(plain, expected)


def test_what_float16_cannot_hold_as_an_activation_does_not_overflow(
    kernels: NativeKernels,
) -> None:
    metadata, tokens, desired = layout([(9, 0)]), torch.arange(9), torch.tensor([8])
    decoder = decoder_of(kernels, torch.float16, tie_word_embeddings=False)
    embedding = decoder.packed_model.embedding
    assert isinstance(embedding, Tensor)
    embedding.copy_(embedding.float() * (6e4 / float(embedding.abs().max())))
    for layer in decoder.packed_model.layers:
        layer.mlp_norm.mul_(300)

    with torch.inference_mode():
        logits = decoder.forward(tokens, cache_of(decoder, metadata), metadata, logits_rows=desired)

    assert logits.isfinite().all()
