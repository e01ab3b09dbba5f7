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


class AutoscalerMetrics:
    """The autoscaler's metrics; series of a service end with it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        of_service = ("namespace", "name")

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"autoscaler_{name}", text, labels, namespace=_PREFIX, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"autoscaler_{name}", text, labels, namespace=_PREFIX, registry=registry)

        self.desired = gauge("desired_replicas", "Replicas in force.", *of_service)
        self.recommended = gauge(
            "recommended_replicas", "Replicas by the measurements alone.", *of_service
        )
        self.ready = gauge("ready_replicas", "Replicas that answer.", *of_service)
        self.refused = gauge(
            "refused_requests",
            "Requests for text that were refused since the last replica went.",
            *of_service,
        )
        self.decisions = counter("decisions", "Decisions by reason.", *of_service, "reason")
        self.hold = gauge(
            "hold",
            "1: the number is held, as the metrics cannot be trusted.",
            *of_service,
            "reason",
        )
        self.last_decision = gauge(
            "last_decision_timestamp_seconds",
            "Time at which the last decision was made.",
            *of_service,
        )
        self.conflicts = counter(
            "conflicts", "Decisions that were dropped, as the service had changed meanwhile."
        )
        self.queries = counter("queries", "Queries to Prometheus.", "result")
        self.cross_checks = counter(
            "cross_checks", "Comparisons of Prometheus with a replica's own metrics.", "result"
        )
        self.duration = Histogram(
            "autoscaler_duration_seconds",
            "Seconds from the observation of a service to the write.",
            namespace=_PREFIX,
            buckets=_SECONDS,
            registry=registry,
        )
        self._reasons: dict[NamespacedName, set[str]] = {}
        self._at_zero: set[NamespacedName] = set()
        self._held: dict[NamespacedName, str] = {}

    def count_query(self, result: str) -> None:
        """Count a query to Prometheus by its status code, `ok`, `none` or `invalid`."""
        self.queries.labels(result).inc()

    def count_cross_check(self, result: str) -> None:
        """Count a comparison of Prometheus with a replica's own metrics."""
        self.cross_checks.labels(result).inc()

    def set_replicas(self, key: NamespacedName, *, desired: int, ready: int) -> None:
        """Set the replicas in force and those that answer."""
        self.desired.labels(key.namespace, key.name).set(desired)
        self.ready.labels(key.namespace, key.name).set(ready)

    def set_refused(self, key: NamespacedName, refused: int | None) -> None:
        """Set the requests that a service without replicas has refused; None: there is no count."""
        if refused is not None:
            self.refused.labels(key.namespace, key.name).set(refused)
            self._at_zero.add(key)
        elif key in self._at_zero:
            self.refused.remove(key.namespace, key.name)
            self._at_zero.discard(key)

    def count_decision(
        self, key: NamespacedName, reason: str, *, recommended: int, is_problem: bool
    ) -> None:
        """Count a decision; `is_problem`: it holds, as the metrics cannot be trusted."""
        labels = (key.namespace, key.name)
        self.decisions.labels(*labels, reason).inc()
        self._reasons.setdefault(key, set()).add(reason)
        self.recommended.labels(*labels).set(recommended)
        self.last_decision.labels(*labels).set_to_current_time()
        held = self._held.pop(key, None)
        if held is not None and not (is_problem and held == reason):
            self.hold.remove(*labels, held)
        if is_problem:
            self.hold.labels(*labels, reason).set(1)
            self._held[key] = reason

    def end_decisions(self, key: NamespacedName) -> None:
        """Drop the series of decisions: the service has a mode without them, or is gone."""
        labels = (key.namespace, key.name)
        if (held := self._held.pop(key, None)) is not None:
            self.hold.remove(*labels, held)
        if key in self._reasons:
            for reason in self._reasons.pop(key):
                self.decisions.remove(*labels, reason)
            self.recommended.remove(*labels)
            self.last_decision.remove(*labels)

    def forget(self, key: NamespacedName) -> None:
        """Drop all series of a service that is gone."""
        self.end_decisions(key)
        self.set_refused(key, None)
        for gauge in (self.desired, self.ready):
            gauge.remove(key.namespace, key.name)


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
            "service_ready",
            "1: the service answers requests, or no replica of it is asked for.",
            "namespace",
            "name",
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
        self.autoscaler = AutoscalerMetrics(self.registry)
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
