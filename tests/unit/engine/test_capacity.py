"""How many blocks a memory holds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.capacity import (
    GIB,
    Capacity,
    StepCost,
    size_by_gib,
    size_by_memory,
    size_host,
)
from tandem_engine.kvcache.layout import CacheLayout

# Llama-2-7B-like: 2 · 32 layers · 32 heads · 128 · 2 bytes = 512 KiB a token.
MHA = CacheLayout(num_layers=32, num_kv_heads=32, head_dim=128, dtype="bfloat16", block_size=128)


def test_one_gib_of_an_mha_model_holds_2048_tokens() -> None:
    capacity = size_by_gib(MHA, max_seq_len=1000, gib=1, available=2 * GIB, activations=0)

    assert (capacity.num_blocks, capacity.num_tokens, capacity.max_sequences) == (16, 2048, 2)


def test_the_largest_step_is_set_aside_first() -> None:
    cost = StepCost(fixed=2**20, per_token=100_000, per_row=2_000_000)
    activations = cost.of(num_tokens=1024, num_rows=8, context=1000)
    capacity = size_by_memory(
        MHA, max_seq_len=1000, available=GIB + activations, activations=activations
    )

    assert capacity.num_blocks == 16


def test_a_cache_too_small_for_one_sequence_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        ConfigError, match=r"2048 tokens.*maxSeqLen 4096 needs 2\.00 GiB.*lower maxSeqLen"
    ):
        size_by_gib(MHA, max_seq_len=4096, gib=1, available=2 * GIB, activations=0)


def test_a_given_size_that_the_memory_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"npuMemSize is 3 GiB, but .* leave 1\.50 GiB"):
        size_by_gib(
            MHA,
            max_seq_len=1000,
            gib=3,
            available=2 * GIB,
            activations=GIB // 2,
        )


def layout_with(num_kv_heads: int, **others: Any) -> CacheLayout:
    """Of 32 layers with heads of 128 in bfloat16: 16 KiB a token and KV head."""
    sizes = {"num_layers": 32, "head_dim": 128, "dtype": "bfloat16", "block_size": 128}
    return CacheLayout(num_kv_heads=num_kv_heads, **{**sizes, **others})


@pytest.mark.parametrize(
    ("num_kv_heads", "num_blocks", "num_sequences"),
    [
        # 8 GiB / (512 KiB · 128) = 128 blocks; a sequence of 4096 tokens takes 32 of them.
        pytest.param(32, 128, 4, id="MHA"),
        # A quarter of the bytes: four times the blocks, four times the sequences.
        pytest.param(8, 512, 16, id="GQA with 8 KV heads for 32 query heads"),
        # One head of 128 for 32: 16 KiB a token.
        pytest.param(1, 4096, 128, id="MQA"),
    ],
)
def test_fewer_kv_heads_leave_memory_for_more_sequences(
    num_kv_heads: int, num_blocks: int, num_sequences: int
) -> None:
    capacity = size_by_memory(
        layout_with(num_kv_heads), max_seq_len=4096, available=8 * GIB, activations=0
    )

    assert (capacity.num_blocks, capacity.max_sequences) == (num_blocks, num_sequences)


def test_a_cache_in_8_bits_holds_nearly_twice_the_blocks_and_its_scales_count() -> None:
    half, in_8_bits = (layout_with(8, num_layers=28, dtype=one) for one in ("bfloat16", "int8"))

    # 2 · 28 · 8 · 128 · 2 and 2 · 28 · 8 · (128 + 4)
    assert (half.bytes_per_token, in_8_bits.bytes_per_token) == (114_688, 59_136)
    # 8 GiB / (114,688 · 128) and 8 GiB / (59,136 · 128)
    counts = [
        size_by_memory(each, max_seq_len=4096, available=8 * GIB, activations=0).num_blocks
        for each in (half, in_8_bits)
    ]
    assert counts == [585, 1134]


def test_the_largest_step_is_worked_out_by_hand() -> None:
    # 1,000,000 + 1024 · 67,584 + 8 · 2,052,096 + 4096 · 12
    cost = StepCost(fixed=1_000_000, per_token=67_584, per_row=2_052_096, per_context=12)

    assert cost.of(num_tokens=1024, num_rows=8, context=4096) == 86_671_936


def test_a_sequence_takes_whole_blocks() -> None:
    # 1000 tokens take 8 blocks of 128, so that 17 blocks hold 2 of them and not 2.2.
    assert Capacity(num_blocks=17, block_size=128, max_seq_len=1000).max_sequences == 2


def test_host_blocks_are_of_the_size_of_kv_blocks() -> None:
    # 2 GiB / (128 KiB · 128 tokens) = 2 GiB / 16 MiB
    assert size_host(layout_with(8), gib=2, available=4 * GIB) == 128


def test_nothing_is_swapped_without_cpu_mem_size() -> None:
    assert size_host(MHA, gib=0, available=0) == 0


def test_host_memory_that_is_not_there_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        ConfigError, match=r"cpuMemSize is 5 GiB, but 1\.50 GiB of host memory are left; lower it"
    ):
        size_host(MHA, gib=5, available=3 * GIB // 2)


def test_host_memory_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one block of 4096 tokens takes 2\.00 GiB; raise it"):
        size_host(replace(MHA, block_size=4096), gib=1, available=4 * GIB)


@given(
    st.integers(1, 2**10),
    st.integers(1, 4096),
    st.integers(0, 64),
    st.integers(0, 64 * GIB),
)
def test_what_is_given_out_fits_and_one_block_more_would_not(
    num_kv_heads: int, block_size: int, gib: int, activations: int
) -> None:
    available = gib * GIB + activations
    layout = layout_with(num_kv_heads, num_layers=1, head_dim=16, block_size=block_size)
    block_bytes = layout.block_bytes
    longest = block_size  # one block a sequence: the check for room is not what is tested
    if available - activations < block_bytes:
        with pytest.raises(ConfigError):
            size_by_memory(
                layout,
                max_seq_len=longest,
                available=available,
                activations=activations,
            )
        return

    num_blocks = size_by_memory(
        layout,
        max_seq_len=longest,
        available=available,
        activations=activations,
    ).num_blocks

    assert num_blocks * block_bytes <= available - activations < (num_blocks + 1) * block_bytes
    assert num_blocks == size_host(layout, gib=gib, available=available)


def test_the_line_of_the_start_says_blocks_and_sequences_before_what_status_leaves_out() -> None:
    capacity = Capacity(num_blocks=512, block_size=128, max_seq_len=4096)

    line = capacity.in_words(layout_with(8), num_host_blocks=128)

    assert line == (
        "KV cache: 512 blocks of 128 tokens, room for 16 sequences of 4096 tokens, "
        "128 host blocks to swap to (8.00 GiB, 131072 bytes a token in bfloat16)"
    )


def test_the_line_of_the_start_is_quiet_about_a_host_that_holds_nothing() -> None:
    line = Capacity(num_blocks=32, block_size=128, max_seq_len=4096).in_words(layout_with(8))

    assert "room for 1 sequence of 4096 tokens (" in line


def test_a_small_cache_is_told_in_mebibytes() -> None:
    # 64 blocks · 16 tokens · 2 · 4 layers · 2 KV heads · 32 · 4 bytes = 1024 · 2048 bytes
    line = Capacity(num_blocks=64, block_size=16, max_seq_len=512).in_words(
        layout_with(2, num_layers=4, head_dim=32, dtype="float32", block_size=16)
    )

    assert line == (
        "KV cache: 64 blocks of 16 tokens, room for 2 sequences of 512 tokens "
        "(2.00 MiB, 2048 bytes a token in float32)"
    )


def test_the_line_of_the_start_says_what_was_chosen_before_what_status_leaves_out() -> None:
    capacity = Capacity(num_blocks=8, block_size=128, max_seq_len=1024)

    line = capacity.in_words(
        layout_with(8), chosen=["maxSeqLen 1024 of the model's 4096", "maxBatchSize 9 of 200"]
    )

    assert line == (
        "KV cache: 8 blocks of 128 tokens, room for 1 sequence of 1024 tokens, chosen to fit: "
        "maxSeqLen 1024 of the model's 4096, maxBatchSize 9 of 200 "
        "(0.12 GiB, 131072 bytes a token in bfloat16)"
    )
