"""Properties of every rendered object, for any service."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from tandem_operator.k8s import names
from tandem_operator.render.desired import RenderError
from tandem_operator.render.fingerprint import fingerprint
from tandem_operator.render.service import render
from tandem_serve.api.changes import ChangeClass, classify
from tandem_serve.api.spec import InferenceService
from tests.unit.operator.render.services import (
    SETTINGS,
    TOKEN,
    UID,
    cluster_of,
    inference_service,
    rendered,
    services,
)

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def cluster_text(service: InferenceService) -> str:
    return json.dumps(cluster_of(render(service, uid=UID, settings=SETTINGS, token=TOKEN)))


def values_below(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        for part in parts:
            yield from values_below(part)


@given(old=services, new=services)
def test_the_ray_cluster_changes_exactly_when_a_field_needs_new_replicas(
    old: InferenceService, new: InferenceService
) -> None:
    replaces = any(change.change_class is ChangeClass.REPLACE for change in classify(old, new))

    assert (cluster_text(old) != cluster_text(new)) == replaces


@given(service=services)
def test_rendering_twice_gives_the_same(service: InferenceService) -> None:
    once, again = (render(service, uid=UID, settings=SETTINGS, token=TOKEN) for _ in range(2))

    assert json.dumps(once.objects) == json.dumps(again.objects)


@given(service=services)
def test_every_object_is_labelled_owned_and_fingerprinted(service: InferenceService) -> None:
    for manifest in render(service, uid=UID, settings=SETTINGS, token=TOKEN).objects:
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "models"
        assert metadata["labels"] == names.object_labels("tiny")
        (owner,) = metadata["ownerReferences"]
        assert owner["uid"] == UID
        assert owner["controller"]
        assert owner["blockOwnerDeletion"]
        annotations = dict(metadata["annotations"])
        applied = annotations.pop(names.APPLIED)
        bare = {name: value for name, value in metadata.items() if name != "annotations"}
        bare |= {"annotations": annotations} if annotations else {}
        assert applied == fingerprint({**manifest, "metadata": bare})


@given(service=services)
def test_nothing_is_rendered_that_kubernetes_would_leave_out(service: InferenceService) -> None:
    """KubeRay writes a RayService back: an empty text would be gone, and look like drift."""
    for manifest in render(service, uid=UID, settings=SETTINGS, token=TOKEN).objects:
        for value in values_below(manifest):
            assert value is not None
            assert value != ""
            assert value != []


def test_the_longest_name_leaves_room_for_what_is_appended() -> None:
    name = "n" * names.MAX_NAME_LENGTH
    desired = rendered(name=name)

    # KubeRay appends -xxxxx, a dash, the group and a suffix of its own.
    assert len(f"{name}-xxxxx-head-svc") <= 63
    for manifest in desired.objects:
        assert len(manifest["metadata"]["name"]) <= 63
        for value in manifest["metadata"]["labels"].values():
            assert LABEL_VALUE.fullmatch(value)
    assert len(desired.token.secret) <= 63


def test_a_longer_name_is_refused_with_the_way_out() -> None:
    with pytest.raises(RenderError, match=r"has 48 characters.*at most 47: shorten it"):
        rendered(name="n" * 48)


def test_the_policies_come_before_what_they_guard() -> None:
    kinds = [manifest["kind"] for manifest in rendered().objects]

    assert kinds == ["NetworkPolicy", "NetworkPolicy", "PodDisruptionBudget", "RayService"]


def test_a_service_without_a_namespace_is_in_the_default_one() -> None:
    service = inference_service()
    metadata = service.metadata.model_copy(update={"namespace": None})
    service = service.model_copy(update={"metadata": metadata})

    desired = render(service, uid=UID, settings=SETTINGS, token=TOKEN)

    assert {manifest["metadata"]["namespace"] for manifest in desired.objects} == {"default"}
