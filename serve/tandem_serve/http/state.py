"""State that all handlers of one application share."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from tandem_engine.api.engine_client import EngineClient
from tandem_serve.http import errors
from tandem_serve.http.admission.body_budget import BodyBudget
from tandem_serve.http.admission.recording import RecordingSlot
from tandem_serve.http.admission.slots import AdmissionControl
from tandem_serve.http.metrics import ResponseCounts
from tandem_serve.http.openai.leniency import IgnoredFields
from tandem_serve.http.settings import Dependencies, HttpSettings
from tandem_serve.http.tracing import Tracing

GetEngine = Callable[[], EngineClient | None]
"""The engine of this process, or None while it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpState:
    """Settings, the engine, admission and counters."""

    settings: HttpSettings
    dependencies: Dependencies
    get_engine: GetEngine
    admission: AdmissionControl
    text_admission: AdmissionControl
    """The slots of /tokenize and /detokenize, which compute nothing on the engine."""
    recording: RecordingSlot
    body_budget: BodyBudget
    counts: ResponseCounts
    tracing: Tracing
    ignored_fields: IgnoredFields
    """Unknown fields of requests that were logged."""

    def engine(self) -> EngineClient:
        """The engine.

        Raises:
            ApiError: it is still starting (503).
        """
        engine = self.get_engine()
        if engine is None:
            raise errors.engine_starting()
        return engine

    def check_model(self, name: str | None) -> None:
        """Refuse any model but the served one; None, where a request may leave it out, is fine.

        Raises:
            ApiError: it is another model (404).
        """
        if name is not None and name != self.settings.model_name:
            raise errors.model_not_found(name, self.settings.model_name)


def state_of(request: Request) -> HttpState:
    """The state of the application that serves `request`."""
    state = request.app.state.http
    if not isinstance(state, HttpState):
        raise TypeError("The application was not made by build_app; this is a bug.")
    return state
