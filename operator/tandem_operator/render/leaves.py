"""A nested document as its single values; pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tandem_operator.render.fingerprint import fingerprint

LONGEST_LEAF: Final = 512
"""Characters of a value, as JSON, that is written down whole."""


def leaves(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of everything in `document` that is no mapping."""
    for name, value in document.items():
        here = f"{path}.{name}"
        if isinstance(value, Mapping):
            yield from leaves(value, here)
        else:
            yield here, value


def digested(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with a hash in place of each long value; done twice it is the same."""
    return {name: _digested(value) for name, value in document.items()}


def _digested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return digested(value)
    return f"hash {fingerprint(value)}" if len(json.dumps(value)) > LONGEST_LEAF else value
