"""Shape and bytes of the KV cache."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.layout import DTYPE_BYTES, CacheLayout


def layout(num_layers: int, num_kv_heads: int, head_dim: int, dtype: str) -> CacheLayout:
    return CacheLayout(
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        block_size=128,
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # 2 · 32 · 32 · 128 · 2
        pytest.param((32, 32, 128, "float16"), 524_288, id="MHA, Llama 2 7B: 512 KiB"),
        # 2 · 32 · 8 · 128 · 2
        pytest.param((32, 8, 128, "bfloat16"), 131_072, id="GQA, Llama 3 8B: 128 KiB"),
        # 2 · 80 · 8 · 128 · 2
        pytest.param((80, 8, 128, "bfloat16"), 327_680, id="GQA, Llama 3 70B: 320 KiB"),
        # 2 · 32 · 1 · 64 · 2
        pytest.param((32, 1, 64, "bfloat16"), 8_192, id="MQA, Falcon 7B: 8 KiB"),
        # 2 · 32 · 8 · 128 · 4
        pytest.param((32, 8, 128, "float32"), 262_144, id="float32: twice the bytes"),
        # 2 · 32 · 8 · (128 + 4)
        pytest.param((32, 8, 128, "int8"), 67_584, id="8 bits: half, and a scale"),
    ],
)
def test_bytes_of_a_token_follow_from_layers_heads_and_type(
    sizes: tuple[Any, ...], expected: int
) -> None:
    assert layout(*sizes).bytes_per_token == expected


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([4, 16, 128]),
    st.sampled_from(list(DTYPE_BYTES)),
    st.integers(0, 9),
)
def test_shapes_hold_the_bytes_that_the_layout_says(
    layers: int, heads: int, head_dim: int, dtype: str, num_blocks: int
) -> None:
    of = layout(layers, heads, head_dim, dtype)

    for shape in (of.shape(num_blocks), of.host_shape(num_blocks)):
        assert math.prod(shape) * DTYPE_BYTES[dtype] == num_blocks * of.block_bytes


@pytest.mark.parametrize("head_dim", [2, 6, 516])
def test_heads_that_cannot_be_in_8_bits_are_refused(head_dim: int) -> None:
    with pytest.raises(ConfigError, match=f"kvCacheDtype is int8.* have {head_dim}"):
        layout(1, 1, head_dim, "int8")
