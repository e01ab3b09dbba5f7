"""The ScaledObject of a service, and the services that have none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_operator.autoscaler.keda import NotExportable, scaled_object
from tests.unit.operator import samples

URL = "http://prometheus.example:9090"
GOLDEN = Path(__file__).with_name("scaled_object.yaml")
EXTERNAL = {"mode": "External", "minReplicas": 2, "maxReplicas": 9}
SLO = {
    "ttft": {"target": "1.5s", "percentile": 95},
    "tpot": {"target": "80ms"},
}


def exported(*, scaling: dict[str, Any] = EXTERNAL, **spec: Any) -> dict[str, Any]:
    return scaled_object(samples.service(scaling=scaling, **spec), "demo", URL)


def test_the_scaled_object_is_the_one_that_was_read_and_approved() -> None:
    behavior = {
        "scaleUp": {"stabilizationWindowSeconds": 15, "maxStep": 3},
        "scaleDown": {"stabilizationWindowSeconds": 600, "maxStep": 2},
    }

    document = exported(scaling={**EXTERNAL, "behavior": behavior}, slo=SLO)

    assert document == yaml.safe_load(GOLDEN.read_text())


def test_a_target_that_is_not_given_has_no_trigger() -> None:
    triggers = exported(slo={"tpot": {"target": "80ms"}})["spec"]["triggers"]

    assert [trigger["name"] for trigger in triggers] == ["tpot"]


def test_an_empty_answer_of_prometheus_is_an_error_in_every_trigger() -> None:
    triggers = exported(slo=SLO)["spec"]["triggers"]

    assert {one["metadata"]["ignoreNullValues"] for one in triggers} == {"false"}


def test_windows_that_an_hpa_cannot_have_as_periods_are_cut() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 3600}}

    document = exported(scaling={**EXTERNAL, "behavior": behavior}, slo=SLO)

    down = document["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 3600
    assert [policy["periodSeconds"] for policy in down["policies"]] == [1800]


def test_a_service_without_slo_is_refused() -> None:
    with pytest.raises(NotExportable, match=r"demo/tiny has no spec\.slo.*add a target"):
        exported()


@pytest.mark.parametrize("mode", ["Manual", "Recommend", "Auto"])
def test_a_number_with_another_owner_is_refused_with_the_way_out(mode: str) -> None:
    with pytest.raises(NotExportable, match=f"mode {mode}.*kubectl patch isvc tiny -n demo"):
        exported(scaling={**EXTERNAL, "mode": mode}, slo=SLO)


def test_a_service_without_maximum_is_refused() -> None:
    with pytest.raises(NotExportable, match=r"no spec\.scaling\.maxReplicas"):
        exported(scaling={"mode": "External"}, slo=SLO)


def test_a_service_that_may_be_without_replicas_is_woken_by_refused_requests() -> None:
    spec = exported(scaling={**EXTERNAL, "minReplicas": 0}, slo=SLO)["spec"]

    assert spec["minReplicaCount"] == 0
    assert spec["cooldownPeriod"] == 180
    (trigger,) = [one for one in spec["triggers"] if one["name"] == "refused"]
    query = trigger["metadata"]["query"]
    assert 'refused_requests{namespace="demo",name="tiny"}' in query
    assert query.endswith("or vector(0)"), "no series means that nothing was refused"


def test_other_services_keep_keda_s_own_way_to_zero_out() -> None:
    spec = exported(slo=SLO)["spec"]

    assert "cooldownPeriod" not in spec
    assert "refused" not in [one["name"] for one in spec["triggers"]]
