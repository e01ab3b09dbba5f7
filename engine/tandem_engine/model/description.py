"""The small files of a checkpoint: its shapes, its tokenizer, and what they say about answers."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.text.codec import CheckpointCodec, load_codec
from tandem_engine.text.end_tokens import EndTokens, read_end_tokens
from tandem_engine.text.generation_config import in_words, read_sampling_defaults
from tandem_engine.weights.checkpoint import check_readable


class Description(NamedTuple):
    """The files of a checkpoint beside its weights."""

    codec: CheckpointCodec
    model: DecoderConfig
    ends: EndTokens
    sampling_defaults: SamplingDefaults


def describe(config: EngineConfig, report: Callable[[str], None]) -> Description:
    """Read the small files, so that what is wrong in them is said before memory is taken.

    Raises:
        CheckpointError: A file is missing, damaged or not understood.
        ConfigError: A setting does not fit the model.
    """
    folder = Path(config.model_path)
    if folder.is_dir():
        check_readable(folder)
    codec = load_codec(folder, split_special_tokens=config.split_special_tokens)
    model = read_decoder_config(folder)
    if model.disagreement:
        report(model.disagreement)
    ends = read_end_tokens(folder, codec, setting=config.eos_token_ids)
    report(ends.in_words(codec))
    defaults = read_sampling_defaults(folder, config.generation_config)
    if defaults.named():
        report(in_words(defaults))
    return Description(codec, model, ends, defaults)
