"""Sizes that all ranks of a replica have room for; arithmetic only.

Every rank has as many KV blocks as any other, each of its own layers and heads, so the rank with
the least room decides: on the longest sequence, the rows of a step, and the blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.rank_bytes import RankBytes
from tandem_engine.kvcache.capacity import (
    GIB,
    Capacity,
    StepCost,
    in_gib,
    size_by_gib,
    size_by_memory,
    size_host,
)
from tandem_engine.kvcache.fit import Fit, ReplicaMemory, Requirements, fit_together
from tandem_engine.kvcache.layout import CacheLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSizes:
    """The memory of one rank, and what its part of the model takes of it."""

    memory: ReplicaMemory
    layout: CacheLayout
    """Of its KV blocks."""
    cost: StepCost | None = None
    """Of its part of a step; None: not measured, since the blocks are given."""


def share_of_rank(
    config: EngineConfig, rank: int, *, total: int, process: int, weights: int
) -> ReplicaMemory:
    """The memory of a rank, with an even share of what settings give to KV blocks.

    Args:
        config: Settings of the replica.
        rank: Its number.
        total: Its bytes.
        process: Those held before the weights were read.
        weights: Those of its weights.
    """
    num_ranks, npu_mem_size = config.parallelism.ranks, config.npu_mem_size
    return ReplicaMemory(
        rank=rank,
        num_ranks=num_ranks,
        total=total,
        process=process,
        weights=weights,
        # On a CPU the blocks that sequences are swapped out to are of the same memory.
        host=0 if config.is_on_card else config.cpu_mem_size * GIB // num_ranks,
        is_on_card=config.is_on_card,
        kv_cache=npu_mem_size * GIB // num_ranks if npu_mem_size > 0 else None,
    )


def fit_ranks(
    config: EngineConfig, ranks: Sequence[RankSizes], *, model_limit: int, vocab_size: int
) -> list[Fit]:
    """Fit lengths and batch sizes into the memory of all ranks; they are the same in each `Fit`.

    Where the blocks are given, the settings are taken as they are.

    Args:
        config: Settings of the replica.
        ranks: Rank 0 first, which samples.
        model_limit: Tokens that a sequence may have.
        vocab_size: Columns of the logits.

    Raises:
        ConfigError: See `fit.fit`.
    """
    measured = [(rank, rank.cost) for rank in ranks if rank.cost is not None]
    if config.num_kv_blocks is not None or not measured:
        given = Fit(
            max_seq_len=config.max_seq_len or model_limit,
            max_batch_size=config.schedule.max_batch_size,
            step=0,
            step_tokens=0,
        )
        return [given] * len(ranks)
    return fit_together(
        [
            (
                Requirements(
                    schedule=config.schedule,
                    model_limit=model_limit,
                    max_seq_len=config.max_seq_len,
                    max_input_token_len=config.max_input_token_len,
                    vocab_size=0 if rank.memory.rank else vocab_size,
                    layout=rank.layout,
                ),
                rank.memory,
                cost,
            )
            for rank, cost in measured
        ]
    )


def size_ranks(
    config: EngineConfig, ranks: Sequence[RankSizes], fits: Sequence[Fit]
) -> tuple[Capacity, int]:
    """The KV cache, and the host blocks, that all ranks have room for.

    Args:
        config: Settings of the replica.
        ranks: Rank 0 first.
        fits: The result of `fit_ranks`.

    Raises:
        ConfigError: A rank has no room for one sequence, or for what the settings say.
    """
    capacities = [_capacity(config, rank, fitted) for rank, fitted in zip(ranks, fits, strict=True)]
    capacity = min(capacities, key=lambda rank: rank.num_blocks)
    return capacity, min(_num_host_blocks(config, rank, capacity) for rank in ranks)


def bytes_of_ranks(
    ranks: Sequence[RankSizes],
    fits: Sequence[Fit],
    *,
    num_blocks: int,
    num_host_blocks: int,
) -> list[RankBytes]:
    """Where the memory of each rank goes.

    Args:
        ranks: Rank 0 first.
        fits: The result of `fit_ranks`.
        num_blocks: KV blocks of each rank, those of its dp rank alone.
        num_host_blocks: Host blocks, likewise.
    """
    return [
        RankBytes(
            rank=rank.memory.rank,
            process=rank.memory.process,
            weights=rank.memory.weights,
            kv_cache=num_blocks * rank.layout.block_bytes,
            host_cache=num_host_blocks * rank.layout.host_block_bytes,
            step=fitted.step,
        )
        for rank, fitted in zip(ranks, fits, strict=True)
    ]


def memory_in_words(memory: ReplicaMemory, fitted: Fit) -> str:
    """The line of the log of the start that says where the memory goes."""
    text = (
        f"Memory: {in_gib(memory.total)}, of which the process takes {in_gib(memory.process)}, "
        f"weights {in_gib(memory.weights)} and the largest step {in_gib(fitted.step)} "
        f"({fitted.step_tokens} tokens, {fitted.max_batch_size} rows)"
    )
    return text if memory.num_ranks == 1 else f"Rank {memory.rank}: {text}"


def _capacity(config: EngineConfig, rank: RankSizes, fitted: Fit) -> Capacity:
    layout, available = rank.layout, rank.memory.left
    if config.num_kv_blocks is not None:
        return Capacity(
            num_blocks=config.num_kv_blocks,
            block_size=layout.block_size,
            max_seq_len=fitted.max_seq_len,
        ).checked(layout, available=0, activations=0, is_on_card=config.is_on_card)
    if config.npu_mem_size > 0:
        return size_by_gib(
            layout,
            max_seq_len=fitted.max_seq_len,
            gib=config.npu_mem_size,
            available=available,
            activations=fitted.step,
            num_ranks=rank.memory.num_ranks,
            is_on_card=config.is_on_card,
        )
    return size_by_memory(
        layout,
        max_seq_len=fitted.max_seq_len,
        available=available,
        activations=fitted.step,
        is_on_card=config.is_on_card,
    )


def _num_host_blocks(config: EngineConfig, rank: RankSizes, capacity: Capacity) -> int:
    """Blocks for sequences that are swapped out: cpuMemSize."""
    if config.num_host_blocks is not None:
        return config.num_host_blocks
    return size_host(
        rank.layout,
        gib=config.cpu_mem_size,
        available=_host_memory(config, rank, capacity),
        num_ranks=rank.memory.num_ranks,
    )


def _host_memory(config: EngineConfig, rank: RankSizes, capacity: Capacity) -> int:
    """Bytes of main memory for swapped-out blocks."""
    memory = rank.memory
    if not memory.is_on_card:
        return memory.left + memory.host - capacity.num_blocks * rank.layout.block_bytes
    # Main memory holds nothing of the model. What the process itself takes is not measured.
    whole = config.cpu_mem_size * GIB if config.memory_bytes is None else config.memory_bytes
    return whole // memory.num_ranks
