"""Reads how a checkpoint is quantised, and checks it against the setting."""

import json
from pathlib import Path

from tandem_engine.api.config import Quantization
from tandem_engine.api.errors import CheckpointError, ConfigError
from tandem_engine.documents import CONFIG_FILE, read_object
from tandem_engine.quantization.compressed_tensors import METHOD, read_compressed_tensors
from tandem_engine.quantization.modelslim import PATTERN, read_modelslim
from tandem_engine.quantization.scheme import AT_LOAD_SCHEME, FLOAT_SCHEME, Scheme


def read_scheme(folder: Path | str) -> Scheme:
    """Read how the checkpoint in `folder` is quantised.

    Raises:
        CheckpointError: It is quantised in a way that is not computed; the text names the file,
            the field and what is supported.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    config = read_object(path).get("quantization_config")
    descriptions = sorted(folder.glob(PATTERN))
    if config is not None and descriptions:
        raise CheckpointError(
            f"{path} has a quantization_config, and {descriptions[0].name} lies beside it; "
            "the weights can be of one of the two formats only: remove what does not belong to them"
        )
    if descriptions:
        if descriptions[1:]:
            names = ", ".join(description.name for description in descriptions)
            raise CheckpointError(f"{folder} holds several descriptions, {names}; leave one")
        return read_modelslim(descriptions[0], read_object(descriptions[0]))
    if config is None:
        return FLOAT_SCHEME
    method = config.get("quant_method") if isinstance(config, dict) else None
    if method != METHOD:
        raise CheckpointError(
            f"{path}: quantization_config.quant_method is {json.dumps(method)}; supported are "
            f"{METHOD} (W8A8) and msModelSlim's {PATTERN}"
        )
    return read_compressed_tensors(path, config)


def resolve_scheme(requested: Quantization, folder: Path | str) -> Scheme:
    """Resolve the setting `requested` for the checkpoint in `folder`.

    Raises:
        CheckpointError: As `read_scheme`.
        ConfigError: It is quantised, but the setting is none.
    """
    scheme = read_scheme(folder)
    if requested == "none" and scheme.is_quantized:
        raise ConfigError(
            f"quantization is none, but {folder} is {scheme.format}, whose weights are in 8 bits; "
            "give auto or w8a8, leave quantization out, or name a checkpoint in float."
        )
    if requested == "w8a8" and not scheme.is_quantized:
        return AT_LOAD_SCHEME
    return scheme
