"""Actions for the differences between desired and observed objects."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.k8s import names
from tandem_operator.reconcile.plan import (
    ApplyObject,
    CreateToken,
    ObjectKey,
    ObservedObjects,
    OwnershipConflict,
    key_of,
    plan,
)
from tandem_operator.render.desired import Desired
from tandem_operator.render.service import render
from tandem_serve.api.spec import InferenceService
from tests.unit.operator.render.services import (
    SETTINGS,
    TOKEN,
    UID,
    one,
    rendered,
    services,
)

Path = tuple[str | int, ...]


def as_applied(manifest: Mapping[str, Any]) -> Any:
    """An object as the API server gives it back: with defaults, and what others added."""
    found: Any = copy.deepcopy(dict(manifest))
    found["metadata"] |= {"resourceVersion": "7", "uid": "own", "generation": 1}
    found["metadata"]["labels"]["argocd.argoproj.io/instance"] = "site"
    found["metadata"]["finalizers"] = ["ray.io/rayservice-finalizer"]
    found["metadata"]["ownerReferences"].append({"kind": "Other", "uid": "x", "name": "x"})
    found["status"] = {"conditions": []}
    for container in _containers(found):
        container["terminationMessagePath"] = "/dev/termination-log"
        container["resources"]["claims"] = []
    return found


def _containers(manifest: Any) -> Iterator[Any]:
    cluster = manifest["spec"].get("rayClusterConfig")
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]] if cluster else []:
        yield from group["template"]["spec"]["containers"]


def observed(*objects: Mapping[str, Any], has_token: bool = True) -> ObservedObjects:
    return ObservedObjects(objects={key_of(found): found for found in objects}, has_token=has_token)


def all_applied(desired: Desired) -> ObservedObjects:
    return observed(*map(as_applied, desired.objects))


def leaf_paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from leaf_paths(part, (*path, name))
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from leaf_paths(part, (*path, index))
    else:
        yield path


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def different(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"not {value}"


def applied_kinds(desired: Desired, there: ObservedObjects) -> list[str]:
    actions = plan(desired, there)
    return [action.manifest["kind"] for action in actions if isinstance(action, ApplyObject)]


def test_at_first_everything_is_made_the_token_before_what_needs_it() -> None:
    desired = rendered()

    actions = plan(desired, ObservedObjects())

    assert actions == (CreateToken(TOKEN), *map(ApplyObject, desired.objects))


@given(service=services)
def test_what_was_applied_is_left_alone(service: InferenceService) -> None:
    desired = render(service, uid=UID, settings=SETTINGS, token=TOKEN)

    assert plan(desired, all_applied(desired)) == ()


@given(data=st.data(), service=services)
def test_any_desired_value_that_changed_is_written_again(
    data: st.DataObject, service: InferenceService
) -> None:
    desired = render(service, uid=UID, settings=SETTINGS, token=TOKEN)
    index = data.draw(st.integers(0, len(desired.objects) - 1))
    manifest: Any = desired.objects[index]
    paths = [path for path in leaf_paths(manifest) if not _is_identity(path)]
    path = data.draw(st.sampled_from(paths))
    found = as_applied(manifest)
    if data.draw(st.booleans(), label="removed"):
        del at(found, path[:-1])[path[-1]]
    else:
        at(found, path[:-1])[path[-1]] = different(at(found, path))
    there = observed(*map(as_applied, desired.objects), found)

    assert plan(desired, there) == (ApplyObject(manifest),)


def _is_identity(path: Path) -> bool:
    """Return True when a mutation makes it another object, or another owner's."""
    return path in {("kind",), ("metadata", "name")} or path[:2] == ("metadata", "ownerReferences")


def test_an_element_more_in_a_list_is_drift() -> None:
    desired = rendered()
    found = as_applied(one(desired, "NetworkPolicy", "tiny-head"))
    found["spec"]["ingress"].append({})

    there = observed(*map(as_applied, desired.objects), found)

    assert applied_kinds(desired, there) == ["NetworkPolicy"]


def test_a_field_that_is_no_longer_rendered_is_removed_once() -> None:
    """The old object has all of the new one, and more: only the hash tells."""
    old = rendered({"runtime": {"nodeSelector": {"pool": "a"}}})
    new = rendered()
    found = as_applied(one(new, "RayService"))
    found["metadata"]["annotations"][names.APPLIED] = one(old, "RayService")["metadata"][
        "annotations"
    ][names.APPLIED]

    there = observed(*map(as_applied, new.objects), found)

    assert applied_kinds(new, there) == ["RayService"]
    assert plan(new, all_applied(new)) == ()


def test_an_amount_may_be_spelled_in_another_way() -> None:
    runtime = {"volumes": [{"name": "own", "emptyDir": {"sizeLimit": "1024Mi"}}]}
    desired = rendered({"runtime": runtime})
    found = as_applied(one(desired, "RayService"))
    group = found["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    (own,) = (v for v in group["template"]["spec"]["volumes"] if v["name"] == "own")
    own["emptyDir"]["sizeLimit"] = "1Gi"

    assert plan(desired, observed(*map(as_applied, desired.objects), found)) == ()

    own["emptyDir"]["sizeLimit"] = "2Gi"

    assert applied_kinds(desired, observed(*map(as_applied, desired.objects), found)) == [
        "RayService"
    ]


def test_a_dying_object_is_left_to_die() -> None:
    desired = rendered()
    found = as_applied(one(desired, "RayService"))
    found["metadata"]["deletionTimestamp"] = "2026-11-21T14:00:00Z"
    found["spec"] = {}

    assert plan(desired, observed(*map(as_applied, desired.objects), found)) == ()


def test_a_lost_token_is_created_again() -> None:
    desired = rendered()
    there = observed(*map(as_applied, desired.objects), has_token=False)

    assert plan(desired, there) == (CreateToken(TOKEN),)


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        pytest.param(
            [],
            "RayService 'tiny' already exists and is not controlled by this InferenceService; "
            "delete it or give the InferenceService another name",
            id="no owner",
        ),
        pytest.param(
            [{"kind": "App", "name": "a", "uid": "a", "controller": True}],
            "RayService 'tiny' already exists and belongs to App 'a'; give the InferenceService "
            "another name",
            id="another's",
        ),
        pytest.param(
            [{"kind": "InferenceService", "name": "tiny", "uid": "old", "controller": True}],
            "RayService 'tiny' belongs to an earlier InferenceService of this name, which is being "
            "deleted; it is created again when that one is gone",
            id="an earlier one's",
        ),
        pytest.param(
            [{"kind": "InferenceService", "name": "tiny", "uid": UID}],
            "RayService 'tiny' already exists and is not controlled by this InferenceService; "
            "delete it or give the InferenceService another name",
            id="not the controller",
        ),
    ],
)
def test_what_is_not_ours_is_never_overwritten(owners: list[Any], said: str) -> None:
    desired = rendered()
    found = as_applied(one(desired, "RayService"))
    found["metadata"]["ownerReferences"] = owners

    with pytest.raises(OwnershipConflict) as caught:
        plan(desired, observed(found))

    assert str(caught.value) == said


def test_kuberay_does_not_take_over_a_service_of_another_owner() -> None:
    service = {"kind": "Service", "metadata": {"name": "tiny"}}

    with pytest.raises(
        OwnershipConflict, match="Service 'tiny' already exists and is not the endpoint of this"
    ):
        plan(rendered(), observed(service))


def test_the_endpoint_that_kuberay_made_is_no_conflict() -> None:
    desired = rendered()
    owner = {"kind": "RayService", "name": "tiny", "uid": "own", "controller": True}
    service = {"kind": "Service", "metadata": {"name": "tiny", "ownerReferences": [owner]}}

    assert plan(desired, observed(service, *map(as_applied, desired.objects))) == ()


def test_the_key_of_an_object_is_kind_and_name() -> None:
    assert key_of(one(rendered(), "RayService")) == ObjectKey("RayService", "tiny")


WITH_SLO = {"slo": {"ttft": {"target": "1s"}}}


def test_the_rules_of_an_slo_that_is_gone_are_emptied() -> None:
    before, after = rendered(WITH_SLO), rendered()
    rule = as_applied(one(before, "PrometheusRule"))

    actions = plan(after, observed(*map(as_applied, after.objects), rule))

    assert actions == (ApplyObject(after.emptied[0]),)
    assert after.emptied[0]["spec"] == {"groups": []}


def test_rules_that_are_empty_are_left_alone() -> None:
    after = rendered()
    rule = as_applied(after.emptied[0])

    assert plan(after, observed(*map(as_applied, after.objects), rule)) == ()


def test_no_empty_rules_are_made() -> None:
    after = rendered()

    assert plan(after, observed(*map(as_applied, after.objects))) == ()


def test_rules_of_another_owner_are_not_emptied() -> None:
    rule = as_applied(one(rendered(WITH_SLO), "PrometheusRule"))
    rule["metadata"]["ownerReferences"] = []
    after = rendered()

    assert plan(after, observed(*map(as_applied, after.objects), rule)) == ()


def test_rules_that_are_being_deleted_are_left_alone() -> None:
    rule = as_applied(one(rendered(WITH_SLO), "PrometheusRule"))
    rule["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z"
    after = rendered()

    assert plan(after, observed(*map(as_applied, after.objects), rule)) == ()
