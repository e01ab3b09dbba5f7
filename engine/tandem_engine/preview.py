"""What a manifest's ranks would hold, from the checkpoint's description: nothing is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.native.widths import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    InputWidth,
    unpacked_reason,
)
from tandem_engine.device.npu.availability import require_npu
from tandem_engine.device.npu.limits import check_cache, check_int8, check_mc2
from tandem_engine.kvcache.fit import Fit, ReplicaMemory
from tandem_engine.kvcache.layout import DTYPE_BYTES, CacheLayout
from tandem_engine.kvcache.rank_sizes import RankSizes, fit_ranks, share_of_rank
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.draft import DraftPart, check_draft
from tandem_engine.model.micro_batches import check_micro_batches
from tandem_engine.model.parameters import Parameters
from tandem_engine.model.quantized import QuantizedLinear
from tandem_engine.model.rank_memory import (
    PROCESS_BYTES,
    angle_bytes,
    dtype_of,
    shapes_of,
    step_cost,
)
from tandem_engine.parallel.plan import ParallelShape, RankPlan, plan_rank, tp_degrees
from tandem_engine.text.codec import load_codec

_WIDTHS: Final = MappingProxyType({"o_proj": HEADS, "down_proj": INTERMEDIATE})
"""Last part of a linear layer's name → the size that its inputs are; else hidden_size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
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


def preview_ranks(config: EngineConfig) -> list[StageMemory]:
    """Estimate the memory of each rank of a replica, stage by stage.

    Raises:
        CheckpointError: The checkpoint is missing, or its description is not understood.
        ConfigError: The model cannot be cut so, or the memory does not hold it; the text says which
            sizes would do.
    """
    folder = Path(config.model_path)
    model = read_decoder_config(folder)
    shape = ParallelShape.of(config.parallelism)
    plans = [plan_rank(shape, model, rank) for rank in range(shape.world_size)]
    dtype = dtype_of(model, config.dtype)
    total = config.memory_bytes
    if total is None:
        raise ConfigError("memoryBytes is missing; give the replica's memory to see its ranks'.")
    draft = check_draft(config, model)
    ranks = [
        RankSizes(
            memory=share_of_rank(
                config,
                plan.rank,
                total=total // shape.world_size,
                process=PROCESS_BYTES,
                weights=_shapes(config, model, plan).num_bytes + _draft_weights(draft, plan),
            ),
            layout=_layout(config, model, plan, dtype, draft),
            cost=step_cost(plan, model, DTYPE_BYTES[dtype]),
        )
        for plan in plans
    ]
    fits = fit_ranks(
        config, ranks, model_limit=model.max_position_embeddings, vocab_size=model.vocab_size
    )
    return _by_stage(
        _stage_memory(
            plan, rank.memory, fitted, rank.layout, angle_bytes(model, fitted.max_seq_len)
        )
        for plan, rank, fitted in zip(plans, ranks, fits, strict=True)
    )


def check_checkpoint(config: EngineConfig) -> None:
    """Make sure that a replica can compute this model and has its tokenizer; no weights are read.

    Raises:
        CheckpointError: A file is missing or garbled, or the architecture is not known.
    """
    folder = Path(config.model_path)
    read_decoder_config(folder)
    load_codec(folder)


def usable_cards() -> int:
    """Return the number of NPUs that a process on this machine may use.

    Raises:
        ConfigError: There is none; the text says what is missing.
    """
    return require_npu().num_usable


def check_device(config: EngineConfig) -> None:
    """Make sure that the operators of the device take the model's sizes; no device is opened.

    Raises:
        CheckpointError: The checkpoint is missing, or its description is not understood.
        ConfigError: They do not; the text says what would do.
    """
    if not config.is_on_card:
        return
    folder = Path(config.model_path)
    model = read_decoder_config(folder)
    plan = plan_rank(ParallelShape.of(config.parallelism), model, 0)
    linears = _shapes(config, model, plan).linears()
    try:
        check_cache(_layout(config, model, plan, dtype_of(model, config.dtype), None))
        in_8_bits = [linear for linear in linears if isinstance(linear, QuantizedLinear)]
        for linear in in_8_bits:
            check_int8(linear.num_outputs, linear.inputs)
        if config.ccl.enable_mc2:
            check_mc2(is_in_float=not in_8_bits)
    except ConfigError as error:
        raise ConfigError(f"device: {error}") from error


def check_ranks(config: EngineConfig) -> None:
    """Make sure that the checkpoint's model can be cut into these ranks, and their steps in two.

    Raises:
        CheckpointError: The checkpoint is missing, or its description is not understood.
        ConfigError: It cannot; the text says what would do.
    """
    model = read_decoder_config(Path(config.model_path))
    ParallelShape.of(config.parallelism).check_model(model)
    check_micro_batches(config, model)


def native_problem(config: EngineConfig) -> str | None:
    """Reason why steps of these ranks take several times as long as they could; None: they do not.

    Raises:
        CheckpointError: The checkpoint is missing, or its description is not understood.
        ConfigError: The model cannot be cut into these ranks.
    """
    model = read_decoder_config(Path(config.model_path))
    shape = ParallelShape.of(config.parallelism)
    reason = _unpacked_reason(config, shape, model)
    if reason is None:
        return None
    cuts = [replace(shape, tp=tp, sp=shape.sp and tp > 1) for tp in tp_degrees(model)]
    native = [str(cut.tp) for cut in cuts if not _unpacked_reason(config, cut, model)]
    way_out = f"tp {' or '.join(native)}" if native else "no tp of this model"
    share = "" if shape.tp == 1 else f"in the share of each of {shape.tp} ranks "
    return (
        "steps are computed in plain torch, and take several times as long as with the CPU's "
        f"kernels: {share}{reason}; {way_out} avoids that"
    )


def check_draft_model(config: EngineConfig) -> None:
    """Make sure that the draft model guesses tokens of the model, and that both fit the memory.

    Raises:
        CheckpointError: The model's checkpoint is missing, or not understood.
        ConfigError: It does not; the text says what would do.
    """
    draft = check_draft(config, read_decoder_config(Path(config.model_path)))
    if draft is not None and config.is_on_card:
        draft.check_cache(check_cache)


def _shapes(config: EngineConfig, model: DecoderConfig, plan: RankPlan) -> Parameters:
    """Parameters that a rank would hold, without memory."""
    return shapes_of(
        model,
        Path(config.model_path),
        plan=plan,
        dtype=config.dtype,
        quantization=config.quantization,
    )


def _unpacked_reason(
    config: EngineConfig, shape: ParallelShape, model: DecoderConfig
) -> str | None:
    # Ranks that share a layer have as many inputs of it each.
    plans = (plan_rank(shape, model, rank) for rank in shape.pp_group(0))
    return unpacked_reason(
        InputWidth(_width_name(linear.names[0]), linear.inputs, isinstance(linear, QuantizedLinear))
        for plan in plans
        for linear in _shapes(config, model, plan).linears()
    )


def _width_name(layer: str) -> str:
    """The size of config.json that a linear layer's inputs are, or are a share of."""
    return _WIDTHS.get(layer.rpartition(".")[2], HIDDEN)


def _draft_weights(draft: DraftPart | None, plan: RankPlan) -> int:
    return 0 if draft is None or plan.rank else draft.weights


def _layout(
    config: EngineConfig,
    model: DecoderConfig,
    plan: RankPlan,
    dtype: str,
    draft: DraftPart | None,
) -> CacheLayout:
    of_draft = 0 if draft is None or plan.rank else draft.layout.bytes_per_token
    return CacheLayout(
        beside=config.parallelism.num_dp * of_draft,
        num_layers=len(plan.layers),
        num_kv_heads=len(plan.kv_heads),
        head_dim=model.head_dim,
        dtype="int8" if config.kv_cache_dtype == "int8" else dtype,
        block_size=config.schedule.cache_block_size,
    )


def _stage_memory(
    plan: RankPlan, memory: ReplicaMemory, fitted: Fit, layout: CacheLayout, angles: int
) -> StageMemory:
    left = memory.left - angles - fitted.step
    kv_cache = left if memory.kv_cache is None else memory.kv_cache
    num_blocks = max(0, kv_cache) // layout.block_bytes
    return StageMemory(
        ranks=(plan.rank,),
        layers=plan.layers,
        total=memory.total,
        weights=memory.weights + angles,
        step=fitted.step,
        step_tokens=fitted.step_tokens,
        kv_cache=num_blocks * layout.block_bytes,
        kv_tokens=num_blocks * layout.block_size,
    )


def _by_stage(memories: Iterable[StageMemory]) -> list[StageMemory]:
    """One for each stage: what the fullest of its ranks holds.

    Ranks of a stage differ by little: the last has fewer tokens of the vocabulary, and rank 0
    gathers the logits of all.
    """
    stages: dict[range, StageMemory] = {}
    for memory in memories:
        stages[memory.layers] = (
            _fuller(stages[memory.layers], memory) if memory.layers in stages else memory
        )
    return list(stages.values())


def _fuller(stage: StageMemory, other: StageMemory) -> StageMemory:
    fuller = min(stage, other, key=lambda memory: memory.kv_tokens)
    return replace(fuller, ranks=(*stage.ranks, *other.ranks))
