"""A service on a real Kubernetes goes to zero, refuses, is woken by a request, and answers it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.harness import DeployedService
from tests.figures import Times
from tests.patience import HANG_S
from tests.tiny import held_out
from tools.kubernetes import Kubernetes

QUESTION: Final = {"model": "tandem-tiny", "messages": held_out(1)[0].messages, "max_tokens": 4}
PERIODS_S: Final = 35.0
"""Two periods of the autoscaler and some seconds."""

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


async def test_the_first_request_wakes_a_service_and_the_next_one_is_answered(
    tandem: Kubernetes, times: Times
) -> None:
    service = DeployedService(tandem, "sleeper")
    try:
        service.apply(with_scaling(minReplicas=0, replicas=1))
        await in_thread(service.wait_ready)
        heads = service.pod_uids("head")
        with times.measure("kubectl scale to 0 → the pod has gone"):
            await in_thread(lambda: falls_asleep(service))
        await in_thread(lambda: is_stopped(service))
        service.apply(with_scaling(minReplicas=0, maxReplicas=2, mode="Auto"))
        with times.measure("first request → answered"):
            await in_thread(lambda: wakes(service))
        assert service.pod_uids("head") == heads, "the Ray cluster is the same"
        assert len(service.pods()) == 1, "a hundred requests start one replica"
    finally:
        service.delete()
    await in_thread(service.wait_gone)


def falls_asleep(service: DeployedService) -> None:
    service.kubernetes.kubectl("scale", "isvc", service.name, "--replicas=0")
    wait_for(
        lambda: (
            service.condition("Ready").get("reason") == "ScaledToZero"
            and service.condition("Ready")["status"] == "True"
            and not service.pods()
        ),
        f"{service.name} is at zero",
        instead=lambda: service.kubernetes.kubectl("get", "isvc,pods,endpointslices", "-o", "wide"),
    )


def is_stopped(service: DeployedService) -> None:
    """Mode Manual: requests are refused with the reason, and start nothing."""
    wait_for(lambda: asked(service) == 503, "the head answers at the endpoint")
    answer = ask(service)
    assert answer.headers["retry-after"] == "60"
    assert answer.json()["error"]["code"] == "no_replica"
    assert httpx.get(f"{service.url}/v1/models", trust_env=False, timeout=HANG_S).status_code == 503

    time.sleep(PERIODS_S)

    status = service.found["status"]
    assert status["replicas"]["summary"] == "0/0"
    assert service.condition("Progressing")["reason"] == "Reconciled"
    assert not service.pods()


def wakes(service: DeployedService) -> None:
    for _ in range(100):
        assert asked(service) in {503, 200}, "no connection is refused"
    wait_for(lambda: asked(service) == 200, "the replica answers")
    wait_for(service.is_ready, "the status says so")
    reasons = [decision["reason"] for decision in service.found["status"]["scaling"]["decisions"]]
    assert "RequestAtZero" in reasons


def asked(service: DeployedService) -> int | None:
    """Return the status of the answer to a question; None: the connection is refused."""
    try:
        return ask(service).status_code
    except httpx.TransportError:
        return None


def ask(service: DeployedService) -> httpx.Response:
    url = f"{service.url}/v1/chat/completions"
    return httpx.post(url, json=QUESTION, trust_env=False, timeout=HANG_S)


def with_scaling(**scaling: Any) -> Callable[[dict[str, Any]], None]:
    """Return the change of a manifest to these fields of spec.scaling, with a target."""

    def change(document: dict[str, Any]) -> None:
        document["spec"]["slo"] = {"ttft": {"target": "5s"}}
        document["spec"]["scaling"] = scaling

    return change


async def in_thread(work: Callable[[], object]) -> None:
    await asyncio.to_thread(work)
