"""Which maxSeqLen and maxBatchSize a memory holds."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.capacity import GIB, StepCost
from tandem_engine.kvcache.fit import Fit, ReplicaMemory, Requirements, fit
from tandem_engine.kvcache.layout import CacheLayout

MIB = 2**20
# Qwen3-0.6B in bfloat16: 2 · 28 · 8 · 128 · 2 bytes a token; steps as they were measured.
LAYOUT = CacheLayout(num_layers=28, num_kv_heads=8, head_dim=128, dtype="bfloat16", block_size=128)
KV_BYTES = LAYOUT.bytes_per_token
COST = StepCost(fixed=20 * MIB, per_token=22_528, per_row=9 * MIB)
CHEAP_ROWS = StepCost(fixed=20 * MIB, per_token=22_528, per_row=MIB)
MIX: dict[str, Any] = {"template_type": "Mix"}


def required(*, schedule: dict[str, Any] | None = None, **given: Any) -> Requirements:
    return Requirements(
        schedule=ScheduleConfig(**(MIX if schedule is None else schedule)),
        **{
            "model_limit": 40_960,
            "max_seq_len": None,
            "max_input_token_len": None,
            "vocab_size": 151_936,
            "layout": LAYOUT,
            **given,
        },
    )


def memory_of(gib: float, **parts: Any) -> ReplicaMemory:
    total = int(gib * GIB)
    return ReplicaMemory(**{"total": total, "process": GIB // 2, "weights": GIB * 9 // 8, **parts})


def held(fitted: Fit, memory: ReplicaMemory) -> int:
    """Bytes of the largest step and one sequence."""
    blocks = -(-fitted.max_seq_len // 128)
    return fitted.step + max(blocks * 128 * KV_BYTES, memory.kv_cache or 0)


def test_a_memory_that_holds_the_model_s_limit_leaves_everything_as_it_is() -> None:
    found = fit(required(), memory_of(16), COST)

    assert (found.max_seq_len, found.max_batch_size) == (40_960, 200)
    # maxPrefillTokens and a token of each row: what is not cut below splitStartBatchSize.
    assert found.step_tokens == 8192 + 200


def test_rows_get_a_quarter_and_a_sequence_the_rest() -> None:
    memory = memory_of(4)
    found = fit(required(), memory, COST)

    # A quarter of 2.375 GiB is 608 MiB, 67 rows of 9 MiB; what whole blocks leave is one more.
    assert found.max_batch_size == 68
    assert found.max_seq_len % 128 == 0
    assert held(found, memory) <= memory.left < held(found, memory) + 128 * KV_BYTES


def test_rows_that_are_cheap_are_not_fewer() -> None:
    found = fit(required(), memory_of(4), CHEAP_ROWS)

    assert found.max_batch_size == 200
    assert found.max_seq_len < 40_960


def test_a_batch_size_that_is_given_stays_and_the_sequence_is_shorter() -> None:
    few = fit(required(schedule={**MIX, "max_batch_size": 8}), memory_of(4), COST)
    many = fit(required(schedule={**MIX, "max_batch_size": 120}), memory_of(4), COST)

    assert (few.max_batch_size, many.max_batch_size) == (8, 120)
    assert few.max_seq_len > many.max_seq_len


def test_a_length_that_is_given_stays_and_the_rows_are_fewer() -> None:
    memory = memory_of(4)
    found = fit(required(max_seq_len=16_384), memory, COST)

    assert found.max_seq_len == 16_384
    assert 1 <= found.max_batch_size < 67
    assert held(found, memory) <= memory.left


def test_prompts_that_are_not_cut_make_a_longer_sequence_cost_a_larger_step() -> None:
    mix, standard = (fit(required(schedule=kind), memory_of(6), COST) for kind in (MIX, {}))

    # Standard raises maxPrefillTokens to the longest request.
    assert mix.step_tokens == 8192 + mix.max_batch_size
    assert standard.step_tokens == standard.max_seq_len + standard.max_batch_size
    assert standard.max_seq_len < mix.max_seq_len


def test_a_sequence_that_is_chosen_leaves_room_for_the_longest_prompt() -> None:
    memory = memory_of(4)
    longest = fit(required(), memory, COST).max_seq_len

    found = fit(required(max_input_token_len=longest - 1), memory, COST)
    assert found.max_seq_len == longest

    # Fewer rows, rather than a prompt that maxSeqLen allows and that does not fit.
    longer = fit(required(max_input_token_len=longest + 500), memory, COST)
    assert longer.max_seq_len > longest + 500
    assert longer.max_batch_size < found.max_batch_size


def test_what_is_given_and_does_not_fit_is_refused_part_by_part_with_what_would_do() -> None:
    asked = required(schedule={**MIX, "max_batch_size": 200}, max_seq_len=40_960)
    with pytest.raises(ConfigError) as refused:
        fit(asked, memory_of(4), COST)

    said = str(refused.value)
    for part in (
        "memory of 4.00 GiB does not hold process 0.50 GiB + weights 1.12 GiB + largest step ",
        "(8392 tokens in 200 rows) + KV cache of one sequence of maxSeqLen 40960 4.38 GiB = ",
    ):
        assert part in said
    gib = re.search(r"set resources\.memory to ([0-9.]+)Gi", said)
    length = re.search(r"lower maxSeqLen to ([0-9]+)\.", said)
    assert gib is not None
    assert length is not None
    assert fit(asked, memory_of(float(gib[1])), COST).max_seq_len == 40_960
    shorter = required(schedule={**MIX, "max_batch_size": 200}, max_seq_len=int(length[1]))
    assert fit(shorter, memory_of(4), COST).max_batch_size == 200


def test_fewer_rows_are_named_where_they_would_do() -> None:
    asked = required(schedule={**MIX, "max_batch_size": 200}, max_seq_len=8192)
    with pytest.raises(ConfigError, match=r"or lower maxBatchSize to \d+\.") as refused:
        fit(asked, memory_of(4), COST)

    rows = int(str(refused.value).rstrip(".").rpartition(" ")[2])
    fewer = required(schedule={**MIX, "max_batch_size": rows}, max_seq_len=8192)
    assert fit(fewer, memory_of(4), COST).max_batch_size == rows


def test_a_cache_of_a_given_size_bounds_the_sequence() -> None:
    found = fit(required(), memory_of(6, kv_cache=GIB), CHEAP_ROWS)

    # 1 GiB / (112 KiB · 128) = 73 blocks
    assert found.max_seq_len == 73 * 128


def test_a_cache_too_small_for_the_length_that_is_given_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"maxSeqLen 40960 4\.38 GiB .*set npuMemSize to 5, with"):
        fit(required(max_seq_len=40_960), memory_of(16, kv_cache=GIB), COST)


def test_a_cache_too_large_for_the_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"KV cache of npuMemSize 3\.00 GiB .*lower npuMemSize"):
        fit(required(max_seq_len=1024), memory_of(4, kv_cache=3 * GIB), COST)


def test_blocks_to_swap_to_count() -> None:
    with pytest.raises(ConfigError, match=r"\+ cpuMemSize 2\.00 GiB = .*or lower cpuMemSize\."):
        fit(required(max_seq_len=8192), memory_of(4, host=2 * GIB), COST)


def test_a_memory_that_the_weights_fill_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weights 1\.12 GiB .*set resources\.memory to"):
        fit(required(), memory_of(1.5), COST)


def test_with_async_scheduling_the_logits_of_two_steps_count() -> None:
    alone, with_async = (
        fit(required(schedule={**MIX, "async_scheduling_enable": on}), memory_of(16), COST).step
        for on in (False, True)
    )

    assert with_async - alone == pytest.approx(1.1 * 200 * 151_936 * 4, abs=2)


@given(
    st.sampled_from(["Mix", "Standard"]),
    st.integers(64 * MIB, 8 * GIB),
    st.integers(0, 200_000),
    st.integers(0, 20 * MIB),
    st.none() | st.integers(2, 40_960),
    st.none() | st.integers(1, 500),
)
def test_what_is_found_fits_and_more_would_not(
    template: str, left: int, per_token: int, per_row: int, length: int | None, rows: int | None
) -> None:
    schedule: dict[str, Any] = {"template_type": template}
    if rows is not None:
        schedule["max_batch_size"] = rows
        schedule["max_prefill_batch_size"] = 0
    cost = StepCost(fixed=MIB, per_token=per_token, per_row=per_row)
    asked = required(schedule=schedule, max_seq_len=length)
    memory = ReplicaMemory(total=left, process=0, weights=0)
    try:
        found = fit(asked, memory, cost)
    except ConfigError as error:
        assert "resources.memory" in str(error)  # noqa: PT017  # one of two ends, both checked
        return

    assert held(found, memory) <= memory.left
    assert found.max_batch_size == (rows or found.max_batch_size) <= (rows or 200)
    assert found.max_seq_len == (length or found.max_seq_len) <= 40_960
    if length is None and found.max_seq_len < 40_960:
        longer = required(
            schedule={
                **schedule,
                "max_batch_size": found.max_batch_size,
                "max_prefill_batch_size": 0,
            },
            max_seq_len=found.max_seq_len + 128,
        )
        with pytest.raises(ConfigError):
            fit(longer, memory, cost)
