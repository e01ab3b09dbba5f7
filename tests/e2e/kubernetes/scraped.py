"""Every replica is scraped by itself: what a Prometheus must have of a service with several."""

from tests.e2e.client_load import MODEL
from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.harness import NAMESPACE, DeployedService
from tests.e2e.kubernetes.prometheus import INTERVAL_S, Prometheus, selector

RECEIVED = "tandem_request_received_total"
COUNTERS = (RECEIVED, "tandem_generation_tokens_total", "tandem_http_requests_total")


def assert_scraped_by_itself(service: DeployedService, prometheus: Prometheus) -> None:
    """Check targets, labels and counters of a service whose replicas all have had requests."""
    prometheus.wait_scraped(service, len(service.pods()))
    pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in service.pods()}
    _assert_targets(service, prometheus, pods)
    received = f"{RECEIVED}{{{selector(service)}}}"
    wait_for(
        lambda: {one.labels["pod"] for one in prometheus.query(received) if one.value} == {*pods},
        "every replica has had requests",
        instead=lambda: prometheus.query(received),
    )
    labels = [one.labels for one in prometheus.query(received)]
    assert {label["model_name"] for label in labels} == {MODEL}
    assert not [name for label in labels for name in label if name.startswith("exported_")]
    _assert_no_counter_falls(service, prometheus)


def _assert_targets(service: DeployedService, prometheus: Prometheus, pods: dict[str, str]) -> None:
    targets = {one["labels"]["pod"]: one["labels"] for one in prometheus.targets_of(service)}
    assert targets.keys() == pods.keys()
    for pod, labels in targets.items():
        assert labels["namespace"] == NAMESPACE
        assert labels["inference_service"] == service.name
        assert labels["instance"] == f"{pods[pod]}:9464"


def _assert_no_counter_falls(service: DeployedService, prometheus: Prometheus) -> None:
    """Behind a proxy that picks a replica, counters jump, and `rate` takes each fall for a
    restart."""
    for counter in COUNTERS:
        series = f"{counter}{{{selector(service)}}}[{30 * INTERVAL_S}s]"
        assert prometheus.value(f"sum(resets({series}))") == 0, counter
        assert (prometheus.value(f"sum(rate({series}))") or 0) > 0, counter
