"""Types of a model's weights, by its description and the settings: nothing is loaded."""

from pathlib import Path
from typing import Final

from tandem_engine.api.config import DType, Quantization
from tandem_engine.kvcache.layout import DTYPE_BYTES
from tandem_engine.model.config import DecoderConfig
from tandem_engine.parallel.memory import Precision
from tandem_engine.quantization.read import resolve_scheme
from tandem_engine.quantization.scheme import LinearKind

_DTYPE: Final = "bfloat16"
"""Where config.json does not name one."""


def dtype_of(model: DecoderConfig, dtype: DType) -> str:
    """Return the type of weights that are not in 8 bits; auto takes the checkpoint's."""
    return (model.dtype if dtype == "auto" else dtype) or _DTYPE


def precision_of(
    model: DecoderConfig, path: Path, dtype: DType, quantization: Quantization
) -> Precision:
    """Return the bytes of a checkpoint's values as a replica would hold them.

    Raises:
        CheckpointError: How the checkpoint is quantised is not understood.
    """
    scheme = resolve_scheme(quantization, path)
    return Precision(
        float_bytes=DTYPE_BYTES[dtype_of(model, dtype)],
        is_in_8_bits=lambda name: scheme.kind_of(name) is not LinearKind.FLOAT,
    )
