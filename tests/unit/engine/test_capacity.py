"""How many blocks a memory holds."""

import pytest

from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.capacity import (
    GIB,
    ModelShape,
    activation_bytes,
    size_by_gib,
    size_by_memory,
)

# Llama-2-7B-like: 2 · 32 layers · 32 heads · 128 · 2 bytes = 512 KiB a token.
MHA = ModelShape(
    hidden_size=4096,
    intermediate_size=11008,
    vocab_size=32000,
    kv_bytes_per_token=524288,
    dtype_bytes=2,
)


def test_one_gib_of_an_mha_model_holds_2048_tokens() -> None:
    capacity = size_by_gib(
        MHA, block_size=128, max_seq_len=1000, gib=1, available=2 * GIB, activations=0
    )

    assert (capacity.num_blocks, capacity.num_tokens, capacity.max_sequences) == (16, 2048, 2)


def test_the_largest_step_is_set_aside_first() -> None:
    activations = activation_bytes(MHA, step_tokens=1024, rows=8)
    capacity = size_by_memory(
        MHA, block_size=128, max_seq_len=1000, available=GIB + activations, activations=activations
    )

    assert capacity.num_blocks == 16


def test_a_cache_without_room_for_one_sequence_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        ConfigError, match=r"2048 tokens.*maxSeqLen 4096 needs 2\.00 GiB.*lower maxSeqLen"
    ):
        size_by_gib(MHA, block_size=128, max_seq_len=4096, gib=1, available=2 * GIB, activations=0)


def test_a_given_size_that_the_memory_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"npuMemSize is 3 GiB, but .* leave 1\.50 GiB"):
        size_by_gib(
            MHA,
            block_size=128,
            max_seq_len=1000,
            gib=3,
            available=2 * GIB,
            activations=GIB // 2,
        )
