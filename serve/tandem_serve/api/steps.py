"""The document of `GET /debug/steps`: what the server writes and `tandem steps` reads."""

from dataclasses import dataclass

from tandem_engine.api.engine_client import EngineLimits
from tandem_engine.api.output import EngineStats
from tandem_engine.api.steps import StepExplanation


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsReport:
    """The last steps of one replica, and what it holds."""

    model: str
    """Name of the served model."""
    time: float
    """When: seconds since 1970."""
    newest: int | None
    """Number of the newest step, whether it is among `steps` or not; None: there was none yet."""
    limits: EngineLimits
    stats: EngineStats
    """Queues and KV blocks after the newest step."""
    steps: tuple[StepExplanation, ...]
    """Oldest first."""
