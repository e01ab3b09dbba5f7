"""The draft model against the model: what a manifest alone cannot tell."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem_engine.api.config import DType, EngineConfig, Quantization
from tandem_engine.api.errors import CheckpointError, ConfigError
from tandem_engine.kvcache.capacity import in_gib
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.rank_memory import PROCESS_BYTES, dtype_of, shapes_of
from tandem_engine.parallel.plan import ParallelShape, plan_rank
from tandem_engine.text.codec import CheckpointCodec, load_codec

SOURCE: Final = "speculation.draft.source"
DRAFT_QUANTIZATION: Final = "auto"
"""A draft model is as its checkpoint is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPart:
    """The draft model of a replica."""

    path: Path
    config: DecoderConfig
    weights: int
    """Bytes of its weights, about."""
    layout: CacheLayout
    """Of its KV cache."""
    token_price: float
    """Cost of a token as a share of its cost to the model: by the bytes of weights."""

    def check_cache(self, check: Callable[[CacheLayout], None]) -> None:
        """Make sure that a device takes its KV cache.

        Raises:
            ConfigError: It does not; the text names the draft model.
        """
        try:
            check(self.layout)
        except ConfigError as error:
            raise ConfigError(f"{SOURCE}: of the draft model, {error}") from error


def check_draft(config: EngineConfig, model: DecoderConfig) -> DraftPart | None:
    """Make sure that the draft model guesses tokens of the model, and that both fit the memory.

    Args:
        config: Of a replica.
        model: As the description of its checkpoint has it.

    Returns:
        The draft model; None: the settings name none.

    Raises:
        ConfigError: It does not; the text says what would do.
    """
    if config.speculation.draft_path is None:
        return None
    path = Path(config.speculation.draft_path)
    try:
        draft = read_decoder_config(path)
        codec = load_codec(path)
        draft_bytes = _weight_bytes(draft, path, config.dtype, DRAFT_QUANTIZATION)
    except CheckpointError as error:
        raise ConfigError(f"{SOURCE}: {error}") from error
    _check_same_tokens(load_codec(Path(config.model_path)), codec)
    _check_memory(config, model, draft_bytes)
    of_model = _weight_bytes(model, Path(config.model_path), config.dtype, config.quantization)
    return DraftPart(
        path=path,
        config=draft,
        weights=draft_bytes,
        layout=_cache_layout(draft, config),
        token_price=min(1.0, draft_bytes / max(1, of_model)),
    )


def _check_same_tokens(model: CheckpointCodec, draft: CheckpointCodec) -> None:
    """Make sure that an id is the same token for both: a draft is checked by its id."""
    difference = _difference(model.tokens_by_id(), draft.tokens_by_id())
    if difference is None and model.special_token_ids() != draft.special_token_ids():
        other = min(model.special_token_ids() ^ draft.special_token_ids())
        difference = f"token {other}, {model.token_text(other)!r}, is special to one of them alone"
    if difference is not None:
        raise ConfigError(
            f"{SOURCE}: the draft model has another tokenizer than the model: {difference}; name a "
            "smaller model of the same family, or set method: ngram, which needs none."
        )


def _difference(model: dict[int, str], draft: dict[int, str]) -> str | None:
    """Say what differs first between two vocabularies; None: nothing does."""
    if model == draft:
        return None
    if len(model) != len(draft):
        return f"{len(draft)} tokens, not {len(model)}"
    first = min(name for name in model if model[name] != draft.get(name))
    return f"its token {first} is {draft.get(first)!r}, not {model[first]!r}"


def _check_memory(config: EngineConfig, model: DecoderConfig, draft_bytes: int) -> None:
    """Make sure that rank 0 has room for the weights of both, by an estimate."""
    if config.memory_bytes is None or config.is_on_card:
        return
    shape = ParallelShape.of(config.parallelism)
    share = config.memory_bytes // shape.world_size
    of_model = _weight_bytes(
        model, Path(config.model_path), config.dtype, config.quantization, shape=shape
    )
    if PROCESS_BYTES + of_model + draft_bytes <= share:
        return
    owner = "this replica's memory is" if shape.world_size == 1 else "rank 0 has"
    raise ConfigError(
        f"{SOURCE}: the draft model's weights take about {in_gib(draft_bytes)}, the model's "
        f"{in_gib(of_model)} and the process {in_gib(PROCESS_BYTES)}, and {owner} "
        f"{in_gib(share)}; raise resources.memory, or name a smaller one."
    )


def _cache_layout(draft: DecoderConfig, config: EngineConfig) -> CacheLayout:
    return CacheLayout(
        num_layers=draft.num_layers,
        num_kv_heads=draft.num_kv_heads,
        head_dim=draft.head_dim,
        dtype=dtype_of(draft, config.dtype),
        block_size=config.schedule.cache_block_size,
    )


def _weight_bytes(
    model: DecoderConfig,
    path: Path,
    dtype: DType,
    quantization: Quantization,
    *,
    shape: ParallelShape | None = None,
) -> int:
    """Bytes of rank 0's weights; `shape`: None: all of the model."""
    plan = plan_rank(shape or ParallelShape(), model, 0)
    return shapes_of(model, path, plan=plan, dtype=dtype, quantization=quantization).num_bytes
