"""Status of KubeRay and answers of Ray about one RayService."""

import pytest

from tandem_operator.status.pod_view import pod_view
from tandem_operator.status.ray_view import clusters_not_running, is_in_effect, ray_view
from tests.unit.operator.samples import (
    CAUSE,
    TRACEBACK,
    answer,
    digest,
    pod,
    ray_service,
    service,
    serving,
    view,
)


def test_a_new_rayservice_has_nothing() -> None:
    ray = view(ray_service(seen=None))

    assert not ray.is_observed
    assert ray.newest is None
    assert not ray.is_serving


def test_rays_own_answer_counts_the_replicas() -> None:
    found = ray_service(active=digest("old", "RUNNING"), endpoints=3)
    ray = view(found, pod("w"), old=answer("RUNNING", "RUNNING", "STARTING", target=3))

    assert ray.is_serving
    assert ray.ready_replicas == 2


def test_without_rays_answer_the_pods_that_are_ready_count() -> None:
    workers = [pod(f"w{number}", ready=number < 3) for number in range(4)]
    ray = view(ray_service(active=digest("old", "RUNNING"), endpoints=4), *workers)

    assert ray.is_serving
    assert ray.ready_replicas == 3


def test_without_rays_answer_and_ready_pods_no_replica_serves() -> None:
    """KubeRay's count stands still while the head that it asks is away."""
    found = ray_service(active=digest("old", "RUNNING"), endpoints=1)
    ray = view(found, pod("head", head=True), pod("w", ready=False), pod("w", "new"))

    assert not ray.is_serving
    assert ray.ready_replicas == 0


def test_pods_that_are_ready_serve_though_kuberay_counts_none() -> None:
    found = ray_service(active=digest("old", "RUNNING"), endpoints=0)

    assert view(found, pod("w")).is_serving
    assert not view(found, pod("w"), old=answer("RUNNING")).is_serving, "Ray answers, so it counts"


def test_while_ray_builds_it_says_no_replicas_and_they_serve_all_the_same() -> None:
    building = answer(target=1)
    building["applications"]["tiny"]["deployments"] = {}
    ray = view(ray_service(active=digest("old", "RUNNING"), endpoints=2), old=building)

    assert ray.is_serving
    assert ray.ready_replicas == 2


def test_endpoints_without_a_running_replica_do_not_serve() -> None:
    ray = view(ray_service(active=digest("old", "RUNNING"), endpoints=1), old=answer("STARTING"))

    assert not ray.is_serving


def test_the_newest_version_is_the_pending_clusters() -> None:
    found = ray_service(active=digest("old"), pending=digest("new"), endpoints=1)
    ray = view(found, old=answer("RUNNING"), new=answer("STARTING", message=TRACEBACK))

    assert ray.newest is not None
    assert ray.newest.failure == CAUSE
    assert ray.is_serving


def test_a_failure_is_known_from_kuberays_digest_as_well() -> None:
    failing = digest("new", "DEPLOYING", TRACEBACK)
    ray = view(ray_service(active=digest("old"), pending=failing, endpoints=1))

    assert ray.newest is not None
    assert ray.newest.failure == CAUSE


def test_pods_belong_to_their_own_cluster() -> None:
    found = ray_service(active=digest("old"), pending=digest("new"))
    ray = view(found, pod("h1", head=True), pod("w1"), pod("h2", "new", head=True))

    assert ray.active
    assert ray.active.head
    assert ray.active.head.name == "h1"
    assert [worker.name for worker in ray.active.workers] == ["w1"]
    assert ray.pending
    assert ray.pending.head
    assert ray.pending.head.name == "h2"


def test_kuberays_refusal_is_handed_on() -> None:
    assert view(ray_service(ready_reason="ValidationFailed")).refusal == "KubeRay's words"


def test_a_cluster_whose_pods_cannot_be_made_says_why() -> None:
    quota = "pods 'x' is forbidden: exceeded quota"
    condition = {"type": "ReplicaFailure", "status": "True", "message": quota}
    found = ray_service(pending=digest("new"))
    ray = ray_view(found, [], {}, {"new": {"status": {"conditions": [condition]}}})

    assert ray.pending
    assert ray.pending.pod_failure == f"KubeRay cannot create the pods: {quota}"


def test_clusters_that_do_not_run_are_in_doubt() -> None:
    found = ray_service(active=digest("old", "RUNNING"), pending=digest("new", "DEPLOYING"))

    assert clusters_not_running(found) == ["new"]
    assert clusters_not_running(ray_service(active=digest("old"))) == ["old"]
    assert clusters_not_running(ray_service(seen=None)) == []


@pytest.mark.parametrize(
    ("said", "replicas", "expected"),
    [
        (answer("RUNNING"), 1, True),
        (answer("RUNNING"), 2, False),
        (answer("RUNNING", "RUNNING", target=2), 2, True),
        (answer("RUNNING", "STARTING", target=2), 2, False),
        (answer("RUNNING", status="DEPLOYING"), 1, False),
        (answer("RUNNING", num_replicas=2), 1, False),
        (answer("RUNNING", user_config={"schedule": {"maxBatchSize": 1}}), 1, False),
        (answer("RUNNING", "STOPPING"), 1, True),
    ],
    ids=[
        "as asked",
        "fewer than asked",
        "two of two",
        "one still starts",
        "Ray deploys",
        "Ray has another number",
        "Ray has other live settings",
        "an old one finishes its requests",
    ],
)
def test_a_version_is_in_effect_when_ray_has_all_of_it(
    said: dict[str, object], replicas: int, expected: bool
) -> None:
    ray = view(ray_service(active=digest("old", "RUNNING"), endpoints=1), old=said)

    assert ray.active
    assert is_in_effect(ray.active, service(replicas)) is expected


def test_when_ray_does_not_answer_kuberays_word_counts() -> None:
    ray = view(ray_service(active=digest("old", "RUNNING"), endpoints=1))

    assert ray.active
    assert is_in_effect(ray.active, service())


def test_serving_is_what_it_says() -> None:
    assert serving().is_serving
    assert pod_view(pod("w")).is_ready
