"""The rights that the operator needs, in its own namespace and nowhere else: no more, no less."""

from pathlib import Path

import pytest

from tests.integration.operator.conftest import StartOperator
from tests.integration.operator.process import Namespace, manifest, settle, until
from tests.integration.operator.rights import RULES, grant, without

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_role_in_its_namespace_is_enough(
    namespace: Namespace, start_operator: StartOperator, tmp_path: Path
) -> None:
    kubeconfig = grant(namespace, RULES, tmp_path)
    operator = start_operator("humble", kubeconfig=kubeconfig).wait_until_leading()

    namespace.apply(manifest(model={"source": "pvc://claim"}))
    until(lambda: namespace.has_condition("tiny", "Accepted", "ClaimMissing"), "it is reconciled")
    namespace.apply(manifest())
    settle(namespace, operator)
    operator.wait_for_resyncs()

    assert operator.refused() == set()
    assert "Forbidden" not in operator.log.read_text()
    events = {one["reason"] for one in namespace.list("events")}
    assert {"Rejected", "Accepted"} <= events


def test_a_right_that_is_missing_is_named_in_the_status(
    namespace: Namespace, start_operator: StartOperator, tmp_path: Path
) -> None:
    kubeconfig = grant(namespace, without("networkpolicies"), tmp_path)
    operator = start_operator("poor", kubeconfig=kubeconfig).wait_until_leading()

    namespace.apply(manifest())

    until(lambda: namespace.has_condition("tiny", "Ready", "ApiForbidden"), "it says so")
    assert "'get' on networkpolicies" in namespace.condition("tiny", "Ready")["message"]
    assert namespace.condition("tiny", "Ready")["status"] == "Unknown"
    assert operator.health()["ok"]
