"""Monitoring, installed by its command, is the real one and works."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.cluster import pods
from tests.integration.cluster.commands import install
from tests.integration.cluster.footprint import wait_for
from tools.cluster import Cluster, monitoring

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

EXPORTER = """
import http.server
class Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"answer 42\\n")
http.server.HTTPServer(("0.0.0.0", 8000), Exporter).serve_forever()
"""


@pytest.fixture(scope="module")
def monitored(cluster: Cluster) -> Cluster:
    """The cluster, with monitoring, which ends with it."""
    install(cluster, "monitoring")
    return cluster


def ask(cluster: Cluster, path: str, **parameters: str) -> Any:
    address = cluster.kubectl(
        *("get", "pod", "prometheus-prometheus-0", "--namespace", monitoring.NAMESPACE),
        "--output=jsonpath={.status.podIP}",
    )
    url = f"http://{address}:9090/api/v1/{path}"
    return httpx.get(url, params=parameters, timeout=20, trust_env=False).json()["data"]


def test_prometheus_takes_monitors_and_rules_of_any_namespace(monitored: Cluster) -> None:
    exporter = pods.manifest("exporter", EXPORTER)
    exporter["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 8000}]
    selector = {"matchLabels": {"app": "exporter"}}
    endpoints = [{"port": "metrics", "interval": "1s"}]
    rule = {"record": "answer:doubled", "expr": "2 * answer"}
    pods.apply(
        monitored,
        exporter,
        custom("PodMonitor", {"selector": selector, "podMetricsEndpoints": endpoints}),
        custom("PrometheusRule", {"groups": [{"name": "test", "interval": "1s", "rules": [rule]}]}),
    )

    wait_for(
        lambda: [one["value"][1] for one in query(monitored, "answer:doubled")] == ["84"],
        "the rule over what was scraped has its value",
    )


def custom(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": kind,
        "metadata": {"name": "test"},
        "spec": spec,
    }


def query(cluster: Cluster, expression: str) -> list[Any]:
    found: list[Any] = ask(cluster, "query", query=expression)["result"]
    return found


def test_prometheus_tells_alertmanager(monitored: Cluster) -> None:
    wait_for(
        lambda: len(ask(monitored, "alertmanagers")["activeAlertmanagers"]) == 1,
        "Prometheus knows its Alertmanager",
    )


def test_installing_again_is_harmless(monitored: Cluster) -> None:
    before = uid(monitored, "prometheus-prometheus-0")

    install(monitored, "monitoring")

    assert uid(monitored, "prometheus-prometheus-0") == before


def uid(cluster: Cluster, pod: str) -> str:
    found: str = json.loads(
        cluster.kubectl("get", "pod", pod, "-n", monitoring.NAMESPACE, "--output=json")
    )["metadata"]["uid"]
    return found
