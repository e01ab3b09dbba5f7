"""A RayService that is scaled keeps the time of its last change."""

from typing import Any, Final

import pytest

from tandem_operator.k8s import names
from tandem_operator.reconcile.change_stamp import stamped
from tandem_operator.status.progress import last_change
from tests.unit.operator.render.services import one, rendered

THEN: Final = "2026-11-21T12:00:00Z"
NOW: Final = "2026-11-21T13:00:00Z"


def ray_service(spec: dict[str, Any] | None = None) -> Any:
    return one(rendered(spec or {}), "RayService")


def stored(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the RayService as the API server has it after it was written at THEN."""
    return stamped(ray_service(spec), None, THEN)


def test_a_new_one_has_the_time_of_its_write() -> None:
    assert last_change(stored()) == THEN


@pytest.mark.parametrize("replicas", [1, 2, 10, 1000])
def test_a_number_of_replicas_is_no_change(replicas: int) -> None:
    scaled = ray_service({"scaling": {"replicas": replicas}})

    assert last_change(stamped(scaled, stored(), NOW)) == THEN


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (0, 9), (3, 0)])
def test_neither_is_the_last_replica_that_goes_nor_the_first_that_comes(
    before: int, after: int
) -> None:
    found = stored({"scaling": {"minReplicas": 0, "replicas": before}})
    scaled = ray_service({"scaling": {"minReplicas": 0, "replicas": after}})

    assert last_change(stamped(scaled, found, NOW)) == THEN


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"dtype": "float32"}},
        {"slo": {"ttft": {"target": "1s"}}},
        {"slo": {"ttft": {"target": "1s"}}, "scaling": {"replicas": 2}},
        {"server": {"maxLinkNum": 2}},
    ],
)
def test_everything_else_is_one(spec: dict[str, Any]) -> None:
    assert last_change(stamped(ray_service(spec), stored(), NOW)) == NOW


def test_a_repair_of_what_was_changed_by_hand_is_one() -> None:
    found = stored()
    found["spec"] = {**found["spec"], "rayClusterDeletionDelaySeconds": 1}

    assert last_change(stamped(ray_service(), found, NOW)) == NOW


def test_a_document_that_is_no_longer_ours_is_one() -> None:
    for document in ("", "num_replicas: 3", "no: document"):
        found = stored()
        found["spec"] = {**found["spec"], "serveConfigV2": document}

        assert last_change(stamped(ray_service(), found, NOW)) == NOW


def test_one_of_an_earlier_operator_keeps_the_time_that_the_api_server_has() -> None:
    found = stored()
    del found["metadata"]["annotations"][names.CHANGED_AT]
    found["metadata"]["managedFields"] = [{"manager": names.FIELD_MANAGER, "time": THEN}]

    assert last_change(found) == THEN
    assert last_change(stamped(ray_service(), found, NOW)) == THEN
