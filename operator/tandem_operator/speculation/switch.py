"""The services that ask for draft tokens; pure."""

from collections.abc import Mapping
from typing import Any


def has_speculation(service: Mapping[str, Any]) -> bool:
    """Return True where the spec asks for draft tokens; it may be invalid."""
    engine = _part(_part(service, "spec"), "engine")
    speculation = _part(engine, "speculation")
    method = speculation.get("method")
    if method is not None:
        return bool(method != "none")
    is_asked_for = _part(engine, "schedule").get("strategy") == "speculative"
    return is_asked_for or bool(_part(speculation, "draft"))


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = of.get(name)
    return part if isinstance(part, Mapping) else {}
