"""NetworkPolicies are enforced, as on a cluster that is taken seriously."""

from typing import Any

import pytest

from tests.integration.cluster import pods
from tests.integration.cluster.footprint import wait_for
from tools.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ASK = """
import urllib.request
try:
    print(urllib.request.urlopen("http://{address}/", timeout={timeout}).status)
except OSError:
    print("refused")
"""
GUARDED = "guarded"


def only_friends_may_enter() -> dict[str, Any]:
    friends = {"podSelector": {"matchLabels": {"is": "friend"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": GUARDED},
        "spec": {
            "podSelector": {"matchLabels": {"app": GUARDED}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [friends]}],
        },
    }


def ask(cluster: Cluster, name: str, address: str, timeout: int, **labels: str) -> str:
    program = ASK.format(address=address, timeout=timeout)
    return pods.run(cluster, name, program, **labels).strip()


def test_a_policy_admits_only_the_clients_that_it_names(cluster: Cluster) -> None:
    address = pods.serve(cluster, GUARDED)
    assert ask(cluster, "before", address, 20) == "200"

    pods.apply(cluster, only_friends_may_enter())

    wait_for(
        lambda: ask(cluster, "stranger", address, 2) == "refused", "the policy keeps a stranger out"
    )
    assert ask(cluster, "friend", address, 20, **{"is": "friend"}) == "200"
