"""What a manifest's ranks would hold, from the checkpoint's description: nothing is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tandem_engine.api.config import EngineConfig, ParallelismConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.capacity import GIB
from tandem_engine.kvcache.fit import Fit, ReplicaMemory, Requirements, fit_together
from tandem_engine.kvcache.layout import DTYPE_BYTES, CacheLayout
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.parallel.memory import (
    PROCESS_BYTES,
    Precision,
    angle_bytes,
    step_cost,
    weight_bytes,
)
from tandem_engine.parallel.plan import ParallelShape, RankPlan, plan_rank
from tandem_engine.quantization.read import resolve_scheme
from tandem_engine.quantization.scheme import LinearKind

_DTYPE: Final = "bfloat16"
"""Where config.json does not name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of the ranks of one stage, in bytes each."""

    ranks: tuple[int, ...]
    layers: range
    total: int
    weights: int
    step: int
    """About what the largest step takes."""
    step_tokens: int
    kv_cache: int
    kv_tokens: int
    """Tokens that this cache holds, in whole blocks."""


def preview_ranks(config: EngineConfig) -> list[RankMemory]:
    """Estimate the memory of each rank of a replica, stage by stage.

    Raises:
        CheckpointError: The checkpoint is missing, or its description is not understood.
        ConfigError: The model cannot be cut so, or the memory does not hold it; the text says which
            sizes would do.
    """
    folder = Path(config.model_path)
    model = read_decoder_config(folder)
    shape = _shape(config.parallelism)
    plans = [plan_rank(shape, model, rank) for rank in range(shape.world_size)]
    scheme = resolve_scheme(config.quantization, folder)
    dtype = (model.dtype if config.dtype == "auto" else config.dtype) or _DTYPE
    precision = Precision(
        float_bytes=DTYPE_BYTES[dtype],
        is_in_8_bits=lambda name: scheme.kind_of(name) is not LinearKind.FLOAT,
    )
    parts = [
        (
            _requirements(config, model, plan, dtype),
            _memory(config, plan, weight_bytes(plan, model, precision)),
            step_cost(plan, model, precision.float_bytes),
        )
        for plan in plans
    ]
    fits = fit_together(parts)
    return _by_stage(
        _rank_memory(plan, memory, fitted, required.layout, angle_bytes(model, fitted.max_seq_len))
        for plan, (required, memory, _), fitted in zip(plans, parts, fits, strict=True)
    )


def check_ranks(config: EngineConfig) -> None:
    """Make sure that the checkpoint's model can be cut into these ranks.

    Raises:
        CheckpointError: The checkpoint is missing, or its description is not understood.
        ConfigError: It cannot; the text says which sizes would do.
    """
    _shape(config.parallelism).check_model(read_decoder_config(Path(config.model_path)))


def _shape(parallelism: ParallelismConfig) -> ParallelShape:
    return ParallelShape(
        tp=parallelism.num_tp, pp=parallelism.pp, dp=parallelism.num_dp, sp=parallelism.sp
    )


def _requirements(
    config: EngineConfig, model: DecoderConfig, plan: RankPlan, dtype: str
) -> Requirements:
    layout = CacheLayout(
        num_layers=len(plan.layers),
        num_kv_heads=len(plan.kv_heads),
        head_dim=model.head_dim,
        dtype="int8" if config.kv_cache_dtype == "int8" else dtype,
        block_size=config.schedule.cache_block_size,
    )
    return Requirements(
        schedule=config.schedule,
        model_limit=model.max_position_embeddings,
        max_seq_len=config.max_seq_len,
        max_input_token_len=config.max_input_token_len,
        vocab_size=model.vocab_size if plan.rank == 0 else 0,
        layout=layout,
    )


def _memory(config: EngineConfig, plan: RankPlan, weights: int) -> ReplicaMemory:
    """An even share of the replica's memory, with a rank's weights in it."""
    num_ranks, total = config.parallelism.ranks, config.memory_bytes
    if total is None:
        raise ConfigError("memoryBytes is missing; give the replica's memory to see its ranks'.")
    kv_cache = config.npu_mem_size * GIB // num_ranks if config.npu_mem_size > 0 else None
    return ReplicaMemory(
        rank=plan.rank,
        num_ranks=num_ranks,
        total=total // num_ranks,
        process=PROCESS_BYTES,
        weights=weights,
        host=config.cpu_mem_size * GIB // num_ranks,
        kv_cache=kv_cache,
    )


def _rank_memory(
    plan: RankPlan, memory: ReplicaMemory, fitted: Fit, layout: CacheLayout, angles: int
) -> RankMemory:
    left = memory.left - angles - fitted.step
    kv_cache = left if memory.kv_cache is None else memory.kv_cache
    num_blocks = max(0, kv_cache) // layout.block_bytes
    return RankMemory(
        ranks=(plan.rank,),
        layers=plan.layers,
        total=memory.total,
        weights=memory.weights + angles,
        step=fitted.step,
        step_tokens=fitted.step_tokens,
        kv_cache=num_blocks * layout.block_bytes,
        kv_tokens=num_blocks * layout.block_size,
    )


def _by_stage(memories: Iterable[RankMemory]) -> list[RankMemory]:
    """One for each stage: what the fullest of its ranks holds.

    Ranks of a stage differ by little: the last has fewer tokens of the vocabulary, and rank 0
    gathers the logits of all.
    """
    stages: dict[range, RankMemory] = {}
    for one in memories:
        stages[one.layers] = _fuller(stages[one.layers], one) if one.layers in stages else one
    return list(stages.values())


def _fuller(one: RankMemory, other: RankMemory) -> RankMemory:
    fuller = min(one, other, key=lambda memory: memory.kv_tokens)
    return replace(fuller, ranks=(*one.ranks, *other.ranks))
