"""A nested document as its single values; pure."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of everything in `document` that is no mapping."""
    for name, value in document.items():
        here = f"{path}.{name}"
        if isinstance(value, Mapping):
            yield from leaves(value, here)
        else:
            yield here, value
