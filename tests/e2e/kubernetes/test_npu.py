"""Services with cards on a real Kubernetes: the kubelet gives them, a second service waits for one.

The cards are pretended: a real device plug-in advertises them, and replicas compute with the NPU's
kernels over operators in plain torch (tests/npu/pretended).
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.device_plugin import CARDS, DEVICE_FILES, KUBELET, RESOURCE
from tests.e2e.kubernetes.harness import NAMESPACE, DeployedService
from tests.tiny import held_out
from tools.cluster import Cluster
from tools.cluster.progress import SILENT
from tools.kubernetes import Kubernetes
from tools.suite.run import CHECKOUT
from tools.up import cluster_values, install_tandem

PRETENDED = CHECKOUT / "tests" / "npu" / "pretended"
PROFILE: dict[str, Any] = {
    "resourceName": RESOURCE,
    "cards": len(CARDS),
    "env": [{"name": "PYTHONPATH", "value": str(PRETENDED)}],
    "volumes": [{"name": "driver", "hostPath": {"path": str(PRETENDED)}}],
    "volumeMounts": [{"name": "driver", "mountPath": "/usr/local/Ascend/driver", "readOnly": True}],
}
TANDEM = Path(sys.executable).with_name("tandem")

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


def on_a_card(document: dict[str, Any]) -> None:
    document["spec"]["engine"] |= {"device": "npu", "npuMemSize": 1, "dtype": "bfloat16"}
    document["spec"]["resources"] |= {"npu": 1, "memory": "3Gi"}


def on_all_cards(document: dict[str, Any]) -> None:
    on_a_card(document)
    document["spec"]["engine"]["parallelism"] = {"tp": len(CARDS)}
    document["spec"]["resources"] |= {"npu": len(CARDS), "cpu": len(CARDS), "memory": "4Gi"}


@pytest.fixture(scope="module")
def cards(cluster: Cluster, tandem: Kubernetes) -> Kubernetes:
    """A node with cards, and an operator that knows their profile."""
    values = cluster_values(cluster)
    tandem.apply(plugin_pod(values))
    wait_for(
        lambda: allocatable(tandem) == str(len(CARDS)),
        "the node has cards",
        instead=lambda: tandem.kubectl("describe", "-n", "kube-system", "pod/cards"),
    )
    values["settings"] |= {"npuProfiles": {"pretended": PROFILE}, "defaultNpuProfile": "pretended"}
    install_tandem(tandem, values, SILENT)
    return tandem


@pytest.fixture
def first(cards: Kubernetes) -> Iterator[DeployedService]:
    yield from a_service(cards, "first")


@pytest.fixture
def second(cards: Kubernetes) -> Iterator[DeployedService]:
    yield from a_service(cards, "second")


def a_service(cards: Kubernetes, name: str) -> Iterator[DeployedService]:
    service = DeployedService(cards, name)
    yield service
    service.delete()
    service.wait_gone()


def plugin_pod(values: dict[str, Any]) -> dict[str, Any]:
    """The device plug-in, as root beside the kubelet's sockets."""
    sockets = {"name": "sockets", "hostPath": {"path": str(KUBELET)}}
    mount = {"name": "sockets", "mountPath": str(KUBELET)}
    container = {
        "name": "cards",
        "image": values["settings"]["replica"]["image"],
        "imagePullPolicy": "Never",
        "command": [sys.executable, "-m", "tests.e2e.kubernetes.device_plugin"],
        "workingDir": str(CHECKOUT),
        "env": values["extraEnv"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [*values["extraVolumeMounts"], mount],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "cards", "namespace": "kube-system"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [*values["extraVolumes"], sockets],
        },
    }


def allocatable(kubernetes: Kubernetes) -> str | None:
    (node,) = kubernetes.list("nodes")
    number: str | None = node["status"]["allocatable"].get(RESOURCE)
    return number


def answers_right(service: DeployedService) -> bool:
    question = held_out(1)[0]
    answer = httpx.post(
        f"{service.url}/v1/chat/completions",
        json={"model": "tandem-tiny", "messages": question.messages, "temperature": 0},
        timeout=120,
        trust_env=False,
    ).json()
    return bool(answer["choices"][0]["message"]["content"] == question.answer)


def explained(cluster: Cluster, service: DeployedService) -> str:
    """The output of `tandem explain`."""
    environment = os.environ | cluster.environment
    done = subprocess.run(
        [TANDEM, "explain", service.name],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_second_service_waits_for_the_cards_of_the_first_and_starts_when_they_come_free(
    cluster: Cluster, first: DeployedService, second: DeployedService
) -> None:
    first.apply(on_all_cards)
    first.wait_ready()
    assert answers_right(first)
    has_all_cards(first)
    wait_for(lambda: "device" in first.found["status"], "the replica's page has been read")
    device = first.found["status"]["device"]
    assert (device["type"], device["name"]) == ("npu", "Pretended910")
    assert re.fullmatch(r"ASCEND_RT_VISIBLE_DEVICES [01], driver 0", device["software"])
    assert "device:      Pretended910 (npu), " in explained(cluster, first)

    second.apply(on_a_card)
    wait_for(
        lambda: f"Insufficient {RESOURCE}" in explained(cluster, second),
        "the second service says what it waits for",
        instead=lambda: explained(cluster, second),
    )
    assert not second.is_ready()

    first.delete()
    second.wait_ready()
    assert answers_right(second)


def has_all_cards(service: DeployedService) -> None:
    """Check the pod of a replica: the resource, and what profile and plug-in give besides."""
    (pod,) = service.serving_pods()
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"][RESOURCE] == str(len(CARDS))
    assert container["resources"]["requests"][RESOURCE] == str(len(CARDS))
    assert PROFILE["env"][0] in container["env"]
    paths = [*DEVICE_FILES, "/usr/local/Ascend/driver/sitecustomize.py"]
    service.kubernetes.kubectl(
        "exec", "-n", NAMESPACE, pod["metadata"]["name"], "-c", "ray-worker", "--", "ls", *paths
    )
    (head,) = service.serving_pods("head")
    for container in head["spec"]["containers"]:
        assert RESOURCE not in container.get("resources", {}).get("limits", {})
