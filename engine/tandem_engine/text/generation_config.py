"""Defaults of sampling parameters in generation_config.json."""

from pathlib import Path
from typing import Any, Final, Literal

from tandem_engine.api.errors import CheckpointError, InvalidParameter
from tandem_engine.api.request import SamplingParams
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_engine.documents import GENERATION_CONFIG_FILE, Fields, read_object

SETTING: Final = "spec.model.generationConfig"
_MAX_NEW_TOKENS: Final = "max_new_tokens"
_NUMBERS: Final = ("temperature", "top_p", "min_p", "repetition_penalty")


def read_sampling_defaults(folder: Path, mode: Literal["auto", "none"]) -> SamplingDefaults:
    """The parameters that hold where a request is silent.

    They are those that vLLM takes with --generation-config auto: temperature, top_p, top_k, min_p,
    repetition_penalty and max_new_tokens. As there, do_sample has no effect.

    Args:
        folder: The checkpoint.
        mode: auto: generation_config.json of the checkpoint; none: no file.

    Raises:
        CheckpointError: The file is not JSON, or a value in it is out of its range.
    """
    path = folder / GENERATION_CONFIG_FILE
    if mode == "none" or not path.exists():
        return SamplingDefaults()
    fields = Fields(path, read_object(path))
    values: dict[str, Any] = {name: _number(fields, name) for name in _NUMBERS}
    values["top_k"] = _whole(fields, "top_k")
    if fields.get(_MAX_NEW_TOKENS) is not None:
        values["max_tokens"] = fields.count(_MAX_NEW_TOKENS)
    defaults = SamplingDefaults(**values)
    try:
        SamplingParams(**{"max_tokens": 1, **defaults.named()})
    except InvalidParameter as error:
        raise CheckpointError(
            f"{path}: {str(error).removesuffix('.')}. Correct it, or set {SETTING}: none."
        ) from error
    return defaults


def in_words(defaults: SamplingDefaults) -> str:
    """Describe the defaults in one line for a person."""
    named = ", ".join(f"{name} {value}" for name, value in defaults.named().items())
    return (
        f"Where a request is silent, {GENERATION_CONFIG_FILE} holds: {named} "
        f"({SETTING}: none leaves it out)"
    )


def _number(fields: Fields, name: str) -> float | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise fields.refuse(name, "a number")
    return value


def _whole(fields: Fields, name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise fields.refuse(name, "a whole number")
    return value
