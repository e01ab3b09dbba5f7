"""A real Prometheus under its operator, in the tests' Kubernetes: what a test asks of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.harness import DeployedService
from tools.cluster import Cluster, monitoring
from tools.kubernetes import Kubernetes
from tools.up import cluster_values

INTERVAL_S = 2
"""Seconds between two scrapes of a replica."""
_PORT = 9090


@dataclass(frozen=True)
class Sample:
    """One series of an instant query."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """The Prometheus of the cluster."""

    kubernetes: Kubernetes

    @property
    def address(self) -> str:
        """The address of its pod, which this machine has a route to."""
        address: str = self._pods()[0]["status"]["podIP"]
        return address

    def query(self, expression: str) -> list[Sample]:
        """The vector of an instant query.

        Raises:
            httpx.HTTPError: it does not answer, or refuses the query.
        """
        data = self._get("query", query=expression)
        assert data["resultType"] == "vector", data
        return [Sample(one["metric"], float(one["value"][1])) for one in data["result"]]

    def value(self, expression: str) -> float | None:
        """The one number of a query; None: it has no result."""
        found = self.query(expression)
        assert len(found) <= 1, f"{expression} has {len(found)} results"
        return found[0].value if found else None

    def targets_of(self, service: DeployedService) -> list[dict[str, Any]]:
        """The targets that are replicas of a service."""
        active: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return [one for one in active if one["labels"].get("inference_service") == service.name]

    def wait_scraped(self, service: DeployedService, replicas: int, *, monitor: str = "") -> None:
        """Wait until exactly that many replicas of a service are scraped, all without error.

        With `monitor`, the name of a PodMonitor, until they are scraped by that one alone: the
        operator of Prometheus takes a while to reload it.
        """

        def is_scraped() -> bool:
            targets = self.targets_of(service)
            return len(targets) == replicas and all(
                target["health"] == "up" and monitor in target["scrapePool"] for target in targets
            )

        wait_for(
            is_scraped,
            f"Prometheus scrapes {replicas} replicas of {service.name}",
            instead=lambda: self.targets_of(service),
        )

    def wait_quiet(self, service: DeployedService, window_s: int) -> None:
        """Wait until no request of a service is left in a window."""
        rate = f"sum(rate(tandem_request_received_total{{{selector(service)}}}[{window_s}s]))"
        wait_for(lambda: self.value(rate) == 0, f"no request of {service.name} in {window_s} s")

    def stop(self) -> None:
        """End it; what it knew is gone, as its volume ends with its pod."""
        self._scale(0)
        wait_for(lambda: not self._pods(), "Prometheus has gone")

    def start(self) -> None:
        """Start it with no past, and wait until it answers."""
        self._scale(1)
        wait_for(self._answers, "Prometheus answers")

    def _scale(self, replicas: int) -> None:
        self.kubernetes.kubectl(
            *("patch", "prometheus", "prometheus", f"--namespace={monitoring.NAMESPACE}"),
            *("--type=merge", "--patch", json.dumps({"spec": {"replicas": replicas}})),
        )

    def _answers(self) -> bool:
        try:
            return bool(self.query("vector(1)"))
        except (httpx.HTTPError, IndexError, KeyError):
            return False

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"http://{self.address}:{_PORT}/api/v1/{path}"
        answer = httpx.get(url, params=parameters, timeout=30, trust_env=False)
        answer.raise_for_status()
        data: dict[str, Any] = answer.json()["data"]
        return data

    def _pods(self) -> list[dict[str, Any]]:
        text = self.kubernetes.kubectl(
            *("get", "pods", "--selector=app.kubernetes.io/name=prometheus"),
            *(f"--namespace={monitoring.NAMESPACE}", "--output=json"),
        )
        pods: list[dict[str, Any]] = json.loads(text)["items"]
        return pods


def monitored_values(cluster: Cluster) -> dict[str, Any]:
    """Values of the chart for a cluster with monitoring: replicas are scraped often."""
    values = cluster_values(cluster)
    return {**values, "metrics": {"podMonitor": {"interval": f"{INTERVAL_S}s"}}}


def selector(service: DeployedService) -> str:
    """The labels that select the series of a service."""
    return f'namespace="default",inference_service="{service.name}"'
