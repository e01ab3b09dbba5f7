"""Micro-batches against the checkpoint: what a manifest alone cannot tell."""

from typing import Final

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.micro_batches import MODEL_TYPES, way_out
from tandem_engine.model.config import DecoderConfig
from tandem_engine.quantization.read import resolve_scheme

_NAME: Final = "streamOptions.microBatch"


def check_micro_batches(config: EngineConfig, model: DecoderConfig) -> None:
    """Make sure that micro-batches, where they are asked for, are tested with this checkpoint.

    Args:
        config: Of a replica.
        model: As the description of its checkpoint has it.

    Raises:
        CheckpointError: How the checkpoint is quantised is not understood.
        ConfigError: They are not, and `unsafeCombinations` is false; the text says what would do.
    """
    if not config.stream_options.micro_batch or config.unsafe_combinations:
        return
    if model.model_type not in MODEL_TYPES:
        tested = " and ".join(MODEL_TYPES)
        raise ConfigError(
            f"{_NAME} is true, but the model is of type {model.model_type}, and it is tested with "
            f"{tested} only; leave it out, or {way_out()}."
        )
    if not resolve_scheme(config.quantization, config.model_path).is_quantized:
        raise ConfigError(
            f"{_NAME} is true, but the checkpoint is in float, and it is tested with linear layers "
            f"in 8 bits only; quantise it as it is read (quantization w8a8), or {way_out()}."
        )
