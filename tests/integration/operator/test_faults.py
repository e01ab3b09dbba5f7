"""Faults around the operator, and its recovery from them."""

import random
import time

import pytest

from tests.integration.operator.conftest import StartOperator, install
from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    children_of,
    manifest,
    settle,
    until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

KILLS = 12
LONGEST_LIFE_S = 2.5
SHORT_PAUSE_S, LONG_PAUSE_S = 6.0, 25.0
LEASE_LOST = 3
RIVAL_DELAY_S, MOST_WRITES = 999, 40


def test_it_may_be_killed_at_any_moment(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    chance = random.Random(7)
    names = [f"tiny-{number}" for number in range(3)]
    for number in range(KILLS):
        batch = 100 + number
        namespace.apply(*(manifest(name, server={"maxLinkNum": batch}) for name in names))
        # The same name: it may take its own lease again at once.
        operator = start_operator().wait_until_leading()
        time.sleep(chance.uniform(0.0, LONGEST_LIFE_S))
        operator.kill()

    operator = start_operator().wait_until_leading()

    for name in names:
        settle(namespace, operator, name)
        assert set(namespace.children(name)) == children_of(name)
        found = namespace.get("rayservice", name)
        assert found
        assert f"maxLinkNum: {100 + KILLS - 1}" in found["spec"]["serveConfigV2"]
    writes = operator.writes()
    operator.wait_for_resyncs()
    assert operator.writes() == writes, "nothing was left half done"


def test_a_short_silence_of_the_api_server_is_sat_out(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)

    pause(namespace, SHORT_PAUSE_S)

    namespace.apply(manifest("other"))
    settle(namespace, operator, "other")
    assert operator.health()["ok"]


def test_a_long_silence_ends_the_leader_and_the_next_one_goes_on(
    namespace: Namespace, operator: OperatorProcess, start_operator: StartOperator
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)

    pause(namespace, LONG_PAUSE_S)

    assert operator.wait_for_end() == LEASE_LOST
    successor = start_operator().wait_until_leading()
    namespace.apply(manifest("other"))
    settle(namespace, successor, "other")


def pause(namespace: Namespace, seconds: float) -> None:
    """The API server hangs for a while."""
    namespace.cluster.pause("kube-apiserver")
    time.sleep(seconds)
    namespace.cluster.resume("kube-apiserver")


def test_it_does_not_fight_another_writer_for_long(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)
    writes = operator.writes()

    def rival() -> bool:
        namespace.patch(
            "rayservice", "tiny", {"spec": {"rayClusterDeletionDelaySeconds": RIVAL_DELAY_S}}
        )
        return namespace.has_condition("tiny", "Progressing", "WriteConflict")

    until(rival, "it reports another writer")
    assert "another writer changes it back" in namespace.condition("tiny", "Progressing")["message"]
    assert operator.writes() - writes < MOST_WRITES

    namespace.apply(manifest(server={"maxLinkNum": 7}))
    until(lambda: deletion_delay(namespace) != RIVAL_DELAY_S, "a new spec is written at once")


def deletion_delay(namespace: Namespace) -> int:
    found = namespace.get("rayservice", "tiny")
    assert found
    delay: int = found["spec"]["rayClusterDeletionDelaySeconds"]
    return delay


def test_kuberay_may_come_later_and_go_again(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    name = "rayservices.ray.io"
    namespace.cluster.kubectl("delete", "crd", name)
    try:
        operator = start_operator().wait_until_leading()
        namespace.apply(manifest())
        until(lambda: namespace.has_condition("tiny", "RayReady", "KubeRayMissing"), "it says so")
        assert "helm install" in namespace.condition("tiny", "Ready")["message"]
        assert operator.health()["ok"]

        install(namespace.cluster, name)
        settle(namespace, operator)
        namespace.kubectl("delete", "rayservice", "tiny")
        until(lambda: namespace.get("rayservice", "tiny"), "the watch works: it comes back")

        namespace.cluster.kubectl("delete", "crd", name)
        until(lambda: namespace.has_condition("tiny", "RayReady", "KubeRayMissing"), "it says so")
        assert operator.health()["ok"]
    finally:
        install(namespace.cluster, name)
    settle(namespace, operator)
