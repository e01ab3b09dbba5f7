"""The services that ask for micro-batches; pure."""

from collections.abc import Mapping
from typing import Any


def has_micro_batches(service: Mapping[str, Any]) -> bool:
    """Return True where the spec asks for micro-batches; it may be invalid."""
    part: Any = service
    for name in ("spec", "engine", "streamOptions", "microBatch"):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part is True
