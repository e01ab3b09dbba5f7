"""Effect of a change of a service on its replicas, reported before it is made."""

from typing import Any

import pytest
from hypothesis import given

from tandem_operator.k8s import names
from tandem_operator.render.service import render
from tandem_operator.status.pending_change import PendingChange, pending_change
from tandem_serve.api.changes import ChangeClass
from tandem_serve.api.spec import InferenceService
from tests.unit.operator.render.services import (
    SETTINGS,
    TOKEN,
    UID,
    inference_service,
    one,
    rendered,
    services,
)


@pytest.mark.parametrize(
    ("spec", "change_class", "fields"),
    [
        (
            {"engine": {"schedule": {"maxBatchSize": 100}}},
            ChangeClass.LIVE,
            ("spec.engine.schedule.maxBatchSize", "spec.engine.schedule.maxN"),
        ),
        (
            {"slo": {"tpot": {"target": "50ms"}}},
            ChangeClass.LIVE,
            (
                # Chosen by the target where the manifest has no value.
                "spec.engine.schedule.templateType",
                "spec.engine.schedule.strategy",
                "spec.engine.schedule.splitFuse.enabled",
                "spec.engine.schedule.splitFuse.splitStartBatchSize",
                "spec.slo.tpot.percentile",
                "spec.slo.tpot.target",
                "spec.engine.schedule.maxIterTimes",
            ),
        ),
        ({"engine": {"cpuMemSize": 1}}, ChangeClass.REPLACE, ("spec.engine.cpuMemSize",)),
        (
            {"progressDeadlineSeconds": 60},
            ChangeClass.IN_PLACE,
            ("spec.progressDeadlineSeconds",),
        ),
        ({"engine": {"dtype": "float32"}}, ChangeClass.REPLACE, ("spec.engine.dtype",)),
        (
            {"engine": {"dtype": "float32"}, "progressDeadlineSeconds": 60},
            ChangeClass.REPLACE,
            ("spec.engine.dtype", "spec.progressDeadlineSeconds"),
        ),
        (
            {"runtime": {"nodeSelector": {"pool": "a"}}},
            ChangeClass.REPLACE,
            ("spec.runtime.nodeSelector.pool",),
        ),
    ],
)
def test_a_pending_change_has_the_class_of_its_costliest_field(
    spec: dict[str, Any], change_class: ChangeClass, fields: tuple[str, ...]
) -> None:
    there = one(rendered(), "RayService")

    assert pending_change(inference_service(spec), there) == PendingChange(
        change_class=change_class, fields=fields
    )


@given(service=services)
def test_nothing_is_pending_of_what_was_rendered(service: InferenceService) -> None:
    there = one(render(service, uid=UID, settings=SETTINGS, token=TOKEN), "RayService")

    assert pending_change(service, there) is None


def test_a_number_of_replicas_is_no_change_of_the_version() -> None:
    there = one(rendered(), "RayService")
    scaled = inference_service({"scaling": {"minReplicas": 2, "maxReplicas": 4}})

    assert pending_change(scaled, there) is None


def test_a_default_that_is_written_down_is_no_change() -> None:
    there = one(rendered(), "RayService")

    assert pending_change(inference_service({"engine": {"dtype": "auto"}}), there) is None


@pytest.mark.parametrize(
    "there",
    [
        None,
        {"metadata": {}},
        {"metadata": {"annotations": {names.SPEC: "no JSON"}}},
        {"metadata": {"annotations": {names.SPEC: "[]"}}},
    ],
    ids=["no RayService", "no annotation", "spoilt", "spoilt otherwise"],
)
def test_without_the_spec_that_was_rendered_nothing_is_known_to_be_pending(there: Any) -> None:
    assert pending_change(inference_service(), there) is None


def test_a_field_of_another_version_may_cost_all() -> None:
    there = {"metadata": {"annotations": {names.SPEC: '{"bygone": 1}'}}}

    found = pending_change(inference_service(), there)

    assert found is not None
    assert found.change_class is ChangeClass.REPLACE
    assert "spec.bygone" in found.fields
