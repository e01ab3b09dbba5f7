"""GET /health and GET /metrics: for probes and for Prometheus."""

from fastapi import Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic_core import to_json

from tandem_serve.http.metrics import exposition
from tandem_serve.http.state import HttpState, state_of


async def health(request: Request) -> Response:
    """Answer 200 while the engine can serve, 503 with the cause otherwise."""
    http = state_of(request)
    http.engine().check_health()
    document = {"status": "ok", "model": http.settings.model_name}
    return Response(to_json(document), media_type="application/json")


async def metrics(request: Request) -> Response:
    """The metrics in Prometheus' text format."""
    body = metrics_text(state_of(request))
    return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def metrics_text(http: HttpState) -> bytes:
    """Return the engine's metrics, then this layer's; while the engine starts, only the latter.

    It is called on the event loop, which owns the counts.
    """
    engine = http.get_engine()
    own = exposition(
        http.counts,
        num_refused=http.admission.num_refused,
        num_in_flight=http.admission.num_in_flight,
    )
    return own if engine is None else engine.metrics() + own
