"""Observability of a service: where traces of its requests go."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tandem_engine.api.config import MetricAlias
from tandem_engine.api.constraints import TextFormat
from tandem_engine.api.model import Model
from tandem_serve.api.pods import PORT

_HOST: Final = r"([A-Za-z0-9][-.A-Za-z0-9]*|\[[:.0-9A-Fa-f]+\])"
_ENDPOINT: Final = TextFormat(
    matches=(rf"https?://{_HOST}(:{PORT})?(/[-._~%/A-Za-z0-9]*)?",),
    problem="is not the URL of a collector; write http:// or https://, a host and its port, such "
    "as http://otel-collector.monitoring.svc:4318",
    longest=2048,
)


class TracingSpec(Model):
    """OpenTelemetry traces of requests, sent by OTLP over HTTP."""

    endpoint: Annotated[str, AfterValidator(_ENDPOINT)]
    """Base URL of an OTLP/HTTP receiver, such as http://otel-collector.monitoring.svc:4318; spans
    go to /v1/traces below it."""

    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of requests that are traced, of those whose caller sends no traceparent; for the others
    the caller's sampled flag decides."""


class ObservabilitySpec(Model):
    """What a service reports beside its metrics."""

    tracing: TracingSpec | None = None
    """OpenTelemetry traces of requests; absent: there are none."""

    metric_aliases: Annotated[list[MetricAlias], Field(max_length=2)] = Field(default_factory=list)
    """Other engines under whose metric names the series of the replicas stand as well, for
    dashboards and autoscalers that exist: vllm, mindie."""


class TracingSettings(Model):
    """Settings of the traces of one service, as its replicas take them."""

    endpoint: str
    """Base URL of an OTLP/HTTP receiver."""

    sample_ratio: float
    """Share of requests that are traced."""

    service_name: str
    """OpenTelemetry's service.name: the name of the service."""

    model_name: str
    """Name of the served model."""

    service_namespace: str | None = None
    """OpenTelemetry's service.namespace: the Kubernetes namespace."""
