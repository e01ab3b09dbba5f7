"""Sizes on which the ranks of a replica agree: those of the one with the least room."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.capacity import GIB, MAX_SCORED_ROWS, StepCost
from tandem_engine.kvcache.fit import ReplicaMemory
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.kvcache.rank_sizes import (
    RankSizes,
    bytes_of_ranks,
    fit_ranks,
    memory_in_words,
    share_of_rank,
    size_ranks,
)

MIB = 2**20
LAYOUT = CacheLayout(num_layers=28, num_kv_heads=4, head_dim=128, dtype="bfloat16", block_size=128)
COST = StepCost(fixed=20 * MIB, per_token=22_528, per_row=2 * MIB)
LIMIT, VOCAB = 40_960, 151_936


def config_of(**values: Any) -> EngineConfig:
    mix = ScheduleConfig(template_type="Mix")
    parallelism = ParallelismConfig(tp=2)
    return EngineConfig(model_path="m", **{"schedule": mix, "parallelism": parallelism, **values})


def rank_of(
    number: int, gib: float, *, layout: CacheLayout = LAYOUT, cost: StepCost = COST, **parts: Any
) -> RankSizes:
    memory = ReplicaMemory(
        rank=number,
        num_ranks=2,
        total=int(gib * GIB),
        process=GIB // 4,
        weights=GIB // 2,
        **parts,
    )
    return RankSizes(memory=memory, layout=layout, cost=cost)


def sizes_of(config: EngineConfig, *ranks: RankSizes) -> tuple[int, int, int, int]:
    """The longest sequence, the rows, the blocks and the host blocks."""
    fits = fit_ranks(config, ranks, model_limit=LIMIT, vocab_size=VOCAB)
    capacity, num_host_blocks = size_ranks(config, ranks, fits)
    assert {capacity.max_seq_len} == {fit.max_seq_len for fit in fits}
    (rows,) = {fit.max_batch_size for fit in fits}
    return capacity.max_seq_len, rows, capacity.num_blocks, num_host_blocks


def test_the_rank_with_the_least_memory_decides() -> None:
    roomy, tight = rank_of(0, 8), rank_of(1, 2.5)

    found = sizes_of(config_of(), roomy, tight)

    both_tight = sizes_of(config_of(), rank_of(0, 2.5), tight)
    assert found[2] <= sizes_of(config_of(), tight, tight)[2]
    assert found[0] >= both_tight[0]
    assert found[2] < sizes_of(config_of(), roomy, rank_of(1, 8))[2]


def test_the_stage_with_the_most_layers_decides() -> None:
    many = replace(LAYOUT, num_layers=40)

    _, _, blocks, _ = sizes_of(config_of(), rank_of(0, 8), rank_of(1, 8, layout=many))

    alone = sizes_of(config_of(), rank_of(0, 8, layout=many), rank_of(1, 8, layout=many, cost=COST))
    assert alone[2] <= blocks < sizes_of(config_of(), rank_of(0, 8), rank_of(1, 8))[2]


@given(
    gib=st.tuples(st.floats(1.5, 16), st.floats(1.5, 16)),
    layers=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    per_row=st.integers(0, 9 * MIB),
)
def test_what_is_agreed_on_fits_every_rank(
    gib: tuple[float, float], layers: tuple[int, int], per_row: int
) -> None:
    ranks = [
        rank_of(
            number,
            gib[number],
            layout=replace(LAYOUT, num_layers=layers[number]),
            cost=replace(COST, per_row=per_row),
        )
        for number in range(2)
    ]
    config = config_of()
    try:
        fits = fit_ranks(config, ranks, model_limit=LIMIT, vocab_size=VOCAB)
    except ConfigError:
        return  # a rank does not even hold one sequence; its words are below
    capacity, _ = size_ranks(config, ranks, fits)

    assert capacity.max_sequences >= 1
    for rank, fitted in zip(ranks, fits, strict=True):
        held = fitted.step + capacity.num_blocks * rank.layout.block_bytes
        assert held <= rank.memory.left
        assert (fitted.max_seq_len, fitted.max_batch_size) == (
            capacity.max_seq_len,
            fits[0].max_batch_size,
        )


def test_only_the_rank_that_samples_keeps_logits() -> None:
    config = config_of(schedule=ScheduleConfig(async_scheduling_enable=True))

    first, second = fit_ranks(
        config, [rank_of(0, 16), rank_of(1, 16)], model_limit=LIMIT, vocab_size=VOCAB
    )

    assert first.step - second.step == pytest.approx(
        1.1 * (200 + MAX_SCORED_ROWS) * VOCAB * 4, rel=1e-6
    )


def test_given_sizes_are_shared_by_the_ranks() -> None:
    config = config_of(npu_mem_size=2, cpu_mem_size=1)
    share: dict[str, Any] = {"kv_cache": GIB, "host": GIB // 2}

    _, _, blocks, host_blocks = sizes_of(config, rank_of(0, 8, **share), rank_of(1, 8, **share))

    assert blocks == GIB // LAYOUT.block_bytes
    assert host_blocks == GIB // 2 // LAYOUT.block_bytes


def test_a_refusal_names_the_rank_and_the_memory_of_all() -> None:
    with pytest.raises(
        ConfigError, match=r"^Rank 1's memory of 0\.80 GiB does not hold .*"
    ) as told:
        sizes_of(config_of(max_seq_len=LIMIT), rank_of(0, 8), rank_of(1, 0.8))

    # 0.75 GiB are taken, and a sequence of 40,960 tokens takes 2.19 GiB: twice that, and steps.
    needed = float(str(told.value).split("set resources.memory to ")[1].split("Gi")[0])
    assert 5.8 < needed < 8


def test_given_blocks_are_taken_without_a_measurement() -> None:
    config = config_of(num_kv_blocks=64, num_host_blocks=8, max_seq_len=512)
    ranks = [replace(rank_of(number, 1), cost=None) for number in range(2)]

    assert sizes_of(config, *ranks) == (512, 200, 64, 8)


def test_the_bytes_of_each_rank_add_up() -> None:
    config = config_of(cpu_mem_size=1)
    ranks = [rank_of(number, 8, host=GIB // 2) for number in range(2)]
    fits = fit_ranks(config, ranks, model_limit=LIMIT, vocab_size=VOCAB)
    capacity, num_host = size_ranks(config, ranks, fits)

    found = bytes_of_ranks(ranks, fits, num_blocks=capacity.num_blocks, num_host_blocks=num_host)

    assert [one.rank for one in found] == [0, 1]
    taken = [sum(size for _, size in one.parts()) for one in found]
    assert all(7.9 * GIB < num_bytes <= 8 * GIB for num_bytes in taken)


def test_the_line_of_a_rank_says_which_one_it_is() -> None:
    config = config_of()
    ranks = [rank_of(0, 8), rank_of(1, 8)]
    fits = fit_ranks(config, ranks, model_limit=LIMIT, vocab_size=VOCAB)

    line = memory_in_words(ranks[1].memory, fits[1])
    alone = memory_in_words(replace(ranks[0].memory, num_ranks=1), fits[0])

    assert line.startswith("Rank 1: Memory: 8.00 GiB, of which the process takes 0.25 GiB")
    assert alone.startswith("Memory: 8.00 GiB, of which the process takes 0.25 GiB")


def on_card(gib: float, **parts: Any) -> RankSizes:
    memory = ReplicaMemory(
        total=int(gib * GIB), process=0, weights=GIB // 2, is_on_card=True, **parts
    )
    return RankSizes(memory=memory, layout=LAYOUT, cost=COST)


def test_host_blocks_beside_a_card_are_of_main_memory_and_take_none_of_the_cards() -> None:
    alone = {"parallelism": ParallelismConfig(), "device": "npu", "memory_bytes": 8 * GIB}

    without = sizes_of(config_of(**alone), on_card(8))
    swapping = sizes_of(config_of(**alone, cpu_mem_size=6), on_card(8))

    assert swapping[:3] == without[:3]
    assert swapping[3] == 6 * GIB // LAYOUT.host_block_bytes
    with pytest.raises(ConfigError, match=r"cpuMemSize is 9 GiB, but 8\.00 GiB of host memory"):
        sizes_of(config_of(**alone, cpu_mem_size=9), on_card(8))


def test_a_share_of_a_card_sets_no_host_memory_aside() -> None:
    config = config_of(parallelism=ParallelismConfig(), device="npu", cpu_mem_size=3)

    memory = share_of_rank(config, 0, total=64 * GIB, process=0, weights=GIB)

    assert memory.is_on_card
    assert memory.left == 63 * GIB


@pytest.mark.parametrize(
    ("values", "gib"),
    [
        ({"npu_mem_size": 40}, 8),
        ({"max_seq_len": 40_960}, 2),
        ({"num_kv_blocks": 1, "max_seq_len": 4096}, 8),
    ],
    ids=["npuMemSize", "maxSeqLen", "blocks"],
)
def test_what_a_card_does_not_hold_asks_for_a_larger_card(
    values: dict[str, Any], gib: float
) -> None:
    config = config_of(parallelism=ParallelismConfig(), device="npu", **values)

    with pytest.raises(ConfigError) as refused:
        sizes_of(
            config, on_card(gib, **({"kv_cache": 40 * GIB} if "npu_mem_size" in values else {}))
        )

    assert "take a card with more memory" in str(refused.value)
    assert "resources.memory" not in str(refused.value)
