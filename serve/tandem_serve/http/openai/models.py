"""GET /v1/models and /v1/models/{model}: the one model that is served."""

from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from tandem_serve.http.state import HttpState, state_of


async def list_models(request: Request) -> Response:
    """List the served model."""
    document = {"object": "list", "data": [_model(state_of(request))]}
    return Response(to_json(document), media_type="application/json")


async def retrieve_model(request: Request) -> Response:
    """Describe the served model; any other name is a 404."""
    http = state_of(request)
    http.check_model(request.path_params["model"])
    return Response(to_json(_model(http)), media_type="application/json")


def _model(http: HttpState) -> dict[str, Any]:
    engine = http.get_engine()
    return {
        "id": http.settings.model_name,
        "object": "model",
        "created": http.settings.created_s,
        "owned_by": "tandem",
        "max_model_len": None if engine is None else engine.limits.max_seq_len,
    }
