"""Sampling parameters of a checkpoint, which hold where a request is silent."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Parameters of generation_config.json; None: it names none, and the engine's default holds."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """max_new_tokens there."""

    def named(self) -> dict[str, Any]:
        """Return those that there are, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
