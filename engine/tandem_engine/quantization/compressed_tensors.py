"""The `quantization_config` of compressed-tensors, which llm-compressor writes and vLLM reads.

Of its many forms one is computed here: int-quantized, weights int8 with a scale for each output,
activations int8 token by token, both symmetric. A layer of it has two tensors: `weight`, int8
[out, in], and `weight_scale` [out, 1], with weight ≈ weight_scale * q. What else the format can say
is refused, with the field and its value.
https://github.com/vllm-project/compressed-tensors
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import regex

from tandem_engine.api.errors import CheckpointError
from tandem_engine.quantization.scheme import HEAD, Format, LinearKind, Scheme

METHOD: Final = "compressed-tensors"
_FORMAT: Final = "int-quantized"
_ANY_LINEAR: Final = "Linear"
"""A target that is the name of a class: every linear layer."""
_PATTERN: Final = "re:"
_PATTERNS: Final = "targets or ignore"
_MATCH_S: Final = 1.0
"""Seconds that a pattern may take for a name; a backtracking one would take for ever."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "dynamic": False,
}
"""Defaults of fields that are left out, unless they are empty."""
_WEIGHTS: Final[Mapping[str, Any]] = {"strategy": "channel", **_DEFAULTS}
_ACTIVATIONS: Final[Mapping[str, Any]] = {"strategy": "token", **_DEFAULTS, "dynamic": True}
_GROUP: Final = ("weights", "input_activations", "targets", "format")
_CONFIG: Final = ("quant_method", "format", "config_groups", "ignore", "quantization_status")
_NO_MATTER: Final = frozenset(
    # How the scales were found, their type, and statistics.
    {"observer", "observer_kwargs", "scale_dtype", "zp_dtype", "global_compression_ratio"}
    | {"version"}
)


def read_compressed_tensors(path: Path, config: Mapping[str, Any]) -> Scheme:
    """Parse a `quantization_config`.

    Args:
        path: The config.json that holds it, for errors.
        config: Its value.

    Raises:
        CheckpointError: It is not W8A8 as above.
    """
    where = _Location(path, "quantization_config")
    where.require(config, {"format": _FORMAT}, _CONFIG)
    status = config.get("quantization_status")
    if status not in (None, "compressed", "frozen"):
        raise where.refusal("quantization_status", status, "compressed")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise where.refusal("config_groups", groups, "an object with at least one group")
    targets = [
        target
        for name, group in groups.items()
        for target in _targets(_Location(path, f"{where.within}.config_groups.{name}"), group)
    ]
    ignore = where.texts("ignore", config.get("ignore") or [])
    where.compile([*targets, *ignore])

    def kind_of(name: str) -> LinearKind:
        if where.matches(name, ignore) or not where.matches(name, targets):
            return LinearKind.FLOAT
        return LinearKind.DYNAMIC

    return Scheme(Format.COMPRESSED_TENSORS, kind_of)


def compressed_tensors_config(*, head: bool) -> dict[str, Any]:
    """The `quantization_config` of a checkpoint whose linear layers are all in 8 bits.

    Args:
        head: True when the output head is, too. vLLM does not count it among the linear layers, so
            it is a target of its own.
    """
    common = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None}
    nothing: dict[str, Any] = {"block_structure": None, "actorder": None, "observer_kwargs": {}}
    weights = {**common, "strategy": "channel", "dynamic": False, "observer": "minmax", **nothing}
    inputs = {**common, "strategy": "token", "dynamic": True, "observer": None, **nothing}
    group = {
        "targets": [_ANY_LINEAR, HEAD] if head else [_ANY_LINEAR],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": METHOD,
        "format": _FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [] if head else [HEAD],
        "kv_cache_scheme": None,
    }


def _targets(where: "_Location", group: Any) -> list[str]:
    if not isinstance(group, dict):
        raise where.refusal("", group, "an object")
    where.require(group, {}, _GROUP)
    if group.get("format") not in (None, _FORMAT):
        raise where.refusal("format", group["format"], _FORMAT)
    for field, expected in (("weights", _WEIGHTS), ("input_activations", _ACTIVATIONS)):
        arguments = group.get(field)
        if not isinstance(arguments, dict):
            raise where.refusal(field, arguments, "an object that says int8")
        inner = _Location(where.path, f"{where.within}.{field}")
        inner.require({**_DEFAULTS, **arguments}, expected, ())
    return where.texts("targets", group.get("targets"))


class _Location:
    """An object within config.json, for the sentences on what is wrong in it."""

    def __init__(self, path: Path, within: str) -> None:
        self.path, self.within = path, within

    def refusal(self, field: str, value: Any, expected: str) -> CheckpointError:
        name = f"{self.within}.{field}" if field else self.within
        return CheckpointError(
            f"{self.path}: {name} is {json.dumps(value)}; supported is {expected} "
            "(W8A8: weights int8 by channel, activations int8 by token, both symmetric)"
        )

    def require(
        self, fields: Mapping[str, Any], expected: Mapping[str, Any], others: Iterable[str]
    ) -> None:
        """Refuse a field with another value; an unknown field must be empty."""
        for field, value in expected.items():
            actual = fields.get(field)
            if actual != value or type(actual) is not type(value):
                raise self.refusal(field, actual, json.dumps(value))
        for field, value in fields.items():
            is_known = field in expected or field in others or field in _NO_MATTER
            if not is_known and not _is_empty(value):
                raise self.refusal(field, value, "null")

    def texts(self, field: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(field, value, "a list of names")
        return value

    def compile(self, patterns: Iterable[str]) -> None:
        for pattern in patterns:
            if pattern.startswith(_PATTERN):
                try:
                    regex.compile(pattern.removeprefix(_PATTERN))
                except regex.error:
                    raise self.refusal(
                        _PATTERNS, pattern, "a regular expression behind re:"
                    ) from None

    def matches(self, name: str, patterns: Iterable[str]) -> bool:
        return any(
            self._matches(name, pattern)
            if pattern.startswith(_PATTERN)
            else pattern in (name, _ANY_LINEAR)
            for pattern in patterns
        )

    def _matches(self, name: str, pattern: str) -> bool:
        text = pattern.removeprefix(_PATTERN)
        try:
            return regex.match(text, name, timeout=_MATCH_S) is not None
        except TimeoutError:
            raise self.refusal(
                _PATTERNS, pattern, f"a regular expression that is tried within {_MATCH_S:.0f} s"
            ) from None


def _is_empty(value: Any) -> bool:
    # {"format": "dense"} is how a sparsity_config says that there is none.
    return value in (None, False, {}, [], {"format": "dense"})
