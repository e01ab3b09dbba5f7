"""Builds the HTTP application."""

from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from tandem_engine.api.errors import EngineError
from tandem_serve.http import errors
from tandem_serve.http.admission.api_keys import KeyFolder, KeyMiddleware
from tandem_serve.http.admission.body_budget import BodyBudget
from tandem_serve.http.admission.recording import RecordingSlot
from tandem_serve.http.admission.slots import AdmissionControl
from tandem_serve.http.debug import steps
from tandem_serve.http.metrics import ResponseCounts
from tandem_serve.http.middleware import REQUEST_ID_HEADER, RequestMiddleware
from tandem_serve.http.openai.chat import create_chat_completion
from tandem_serve.http.openai.completions import create_completion
from tandem_serve.http.openai.leniency import HEADER, IgnoredFields
from tandem_serve.http.openai.models import list_models, retrieve_model
from tandem_serve.http.openai.tokenize import TEXT_LINKS, detokenize, tokenize
from tandem_serve.http.operations import health, metrics
from tandem_serve.http.settings import Dependencies, HttpSettings
from tandem_serve.http.state import GetEngine, HttpState
from tandem_serve.http.timeline import timeline
from tandem_serve.http.tracing import Tracing

_ROUTES: Final = (
    ("GET", "/health", health),
    ("GET", "/metrics", metrics),
    ("GET", "/debug/steps", steps),
    ("POST", "/debug/timeline", timeline),
    ("GET", "/v1/models", list_models),
    # Names of models may have slashes.
    ("GET", "/v1/models/{model:path}", retrieve_model),
    ("POST", "/v1/chat/completions", create_chat_completion),
    ("POST", "/v1/completions", create_completion),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
)


def build_app(
    settings: HttpSettings, get_engine: GetEngine, *, dependencies: Dependencies | None = None
) -> FastAPI:
    """The HTTP application of one replica.

    Args:
        settings: fixed settings of the application.
        get_engine: the engine of this process, None while it starts; called at every request, on
            the event loop, so that the engine may be built after the application.
        dependencies: clocks and ids; a test passes its own.
    """
    dependencies = dependencies or Dependencies()
    state = HttpState(
        settings=settings,
        dependencies=dependencies,
        get_engine=get_engine,
        admission=AdmissionControl(settings.max_link_num, dependencies.monotonic_s),
        text_admission=AdmissionControl(
            TEXT_LINKS, dependencies.monotonic_s, "calls of /tokenize and /detokenize"
        ),
        recording=RecordingSlot(dependencies.monotonic_s),
        body_budget=BodyBudget(
            max_bytes=settings.bodies_budget,
            max_readers=settings.max_readers,
            timeout_s=settings.body_timeout_s,
            least_timeout_s=settings.least_body_timeout_s,
        ),
        counts=ResponseCounts(),
        tracing=Tracing(),
        ignored_fields=IgnoredFields(),
    )
    # Requests are parsed by hand (errors in OpenAI's form), so FastAPI has no schema to show.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.http = state
    if settings.api_keys_folder is not None:
        keys = KeyFolder(settings.api_keys_folder, dependencies.monotonic_s)
        app.add_middleware(KeyMiddleware, keys=keys)
    # The last one added is the first to see a request.
    app.add_middleware(RequestMiddleware, state=state)
    if settings.allowed_origins:
        # Outside of all others, so that a page can read a refusal, too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, HEADER, "retry-after"],
        )
    for method, path, endpoint in _ROUTES:
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    app.add_exception_handler(errors.ApiError, errors.answer_error)
    app.add_exception_handler(EngineError, errors.answer_error)
    app.add_exception_handler(errors.ClientDisconnected, errors.answer_client_disconnected)
    app.add_exception_handler(HTTPException, errors.answer_http_error)
    return app
