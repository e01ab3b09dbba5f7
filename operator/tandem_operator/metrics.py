"""The operator's own metrics, all under `tandem_operator_`."""

from typing import Final, Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from tandem_operator.k8s.objects import NamespacedName

ServicePhase = Literal[
    "Ready", "Progressing", "NotReady", "ProgressDeadlineExceeded", "Rejected", "Unknown"
]
PHASES: Final[tuple[ServicePhase, ...]] = get_args(ServicePhase)
_PREFIX: Final = "tandem_operator"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The operator's metrics; series of a service end with it."""

    def __init__(self) -> None:
        # A second series beside every counter, of no use here.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("reconcile", "Reconciles that have ended.", "result")
        self.errors = self._counter("reconcile_errors", "Reconciles that have failed.", "reason")
        self.duration = Histogram(
            "reconcile_duration_seconds",
            "Seconds of a reconcile.",
            namespace=_PREFIX,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.requests = self._counter(
            "api_requests", "Requests to the API server.", "verb", "resource", "code"
        )
        self.ray_requests = self._counter(
            "ray_requests", "Requests to the Ray clusters' REST interface.", "result"
        )
        self.queue_depth = self._gauge("queue_depth", "Services that are due and wait.")
        self.queue_running = self._gauge("queue_running", "Services that are being reconciled.")
        self.services = self._gauge("services", "InferenceServices by phase.", "phase")
        self.ready = self._gauge(
            "service_ready", "1: the service answers requests.", "namespace", "name"
        )
        self.last_reconcile = self._gauge(
            "last_reconcile_timestamp_seconds", "Time at which the last reconcile ended."
        )
        self.last_resync = self._gauge(
            "last_resync_timestamp_seconds", "Time at which the last resync ended."
        )
        self.resynced = self._gauge(
            "namespace_resynced",
            "1: the last resync of a namespace that is served by name succeeded.",
            "namespace",
        )
        self.leader = self._gauge("leader", "1: this process leads; 0: it is on standby.")
        self._phases: dict[NamespacedName, ServicePhase] = {}
        for phase in PHASES:
            self.services.labels(phase).set(0)

    def count_request(self, verb: str, resource: str, code: str) -> None:
        """Count a request to the API server that has ended."""
        self.requests.labels(verb, resource, code).inc()

    def count_ray_request(self, result: str) -> None:
        """Count a request to a Ray cluster by its status code, `invalid` or `none`."""
        self.ray_requests.labels(result).inc()

    def set_phase(self, key: NamespacedName, phase: ServicePhase, *, is_ready: bool) -> None:
        """Set the phase of a service."""
        before = self._phases.get(key)
        if before != phase:
            self.services.labels(phase).inc()
            if before is not None:
                self.services.labels(before).dec()
            self._phases[key] = phase
        self.ready.labels(key.namespace, key.name).set(is_ready)

    def forget(self, key: NamespacedName) -> None:
        """Drop the series of a service that is gone."""
        before = self._phases.pop(key, None)
        if before is not None:
            self.services.labels(before).dec()
            self.ready.remove(key.namespace, key.name)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=_PREFIX, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=_PREFIX, registry=self.registry)
