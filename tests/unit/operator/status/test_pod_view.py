"""Reasons that keep a pod from running."""

from typing import Any

import pytest

from tandem_operator.status.pod_view import (
    may_lack_secret,
    pod_view,
    volume_problem,
    waits_for_volumes,
)
from tests.unit.operator.samples import pod

WAITING = {"name": "ray-worker", "image": "registry/tandem:9"}
OUT_OF_MEMORY = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


def failing(**status: Any) -> str:
    failure = pod_view(pod("w", ready=False, **status)).failure
    assert failure is not None
    return failure


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{**WAITING, "state": {"waiting": {"reason": reason, "message": message}}}]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ImagePullBackOff", "container ray-worker of pod w cannot pull the image 'registry/"),
        ("ErrImageNeverPull", "the node does not have it: no such image"),
        ("CreateContainerConfigError", "container ray-worker of pod w cannot be configured"),
        ("CrashLoopBackOff", "container ray-worker of pod w keeps crashing"),
    ],
)
def test_a_container_that_cannot_start_is_a_failure(reason: str, words: str) -> None:
    assert words in failing(containerStatuses=waiting(reason, "no such image"))


def test_an_init_container_counts_as_well() -> None:
    said = failing(initContainerStatuses=waiting("ImagePullBackOff", "not found"))

    assert said.endswith("cannot pull the image 'registry/tandem:9': not found")


def test_an_unschedulable_pod_has_the_message_of_the_scheduler() -> None:
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available:\n  3 Insufficient huawei.com/Ascend910.",
    }

    assert failing(phase="Pending", conditions=[scheduled]) == (
        "pod w cannot be scheduled: 0/3 nodes are available: 3 Insufficient huawei.com/Ascend910."
    )


@pytest.mark.parametrize("state", ["state", "lastState"])
def test_a_container_killed_for_its_memory_says_what_to_raise(state: str) -> None:
    said = failing(containerStatuses=[{**WAITING, state: OUT_OF_MEMORY}])

    assert said.endswith("was killed for using more than its memory limit; raise resources.memory")


def test_a_head_killed_for_its_memory_names_the_operators_setting() -> None:
    status = {"containerStatuses": [{**WAITING, "lastState": OUT_OF_MEMORY}]}
    pod = {"metadata": {"name": "h", "labels": {"ray.io/node-type": "head"}}, "status": status}

    assert str(pod_view(pod).failure).endswith(
        "raise settings.replica.headResources of the operator"
    )


def test_a_container_that_ended_says_its_code() -> None:
    ended = {"terminated": {"reason": "Error", "exitCode": 2, "message": "bad option"}}

    said = failing(containerStatuses=[{**WAITING, "state": ended}])

    assert said == "container ray-worker of pod w ended with code 2: bad option"


def test_an_evicted_pod_says_why() -> None:
    said = failing(phase="Failed", reason="Evicted", message="The node was low on memory.")

    assert said == "pod w has failed with Evicted: The node was low on memory."


def test_a_pod_that_starts_has_no_failure() -> None:
    assert pod_view(pod("w", ready=False, phase="Pending")).failure is None
    creating = waiting("ContainerCreating")
    assert pod_view(pod("w", ready=False, containerStatuses=creating)).failure is None


def test_a_pod_that_is_ready_has_left_its_failures_behind() -> None:
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}

    assert pod_view(pod("w", containerStatuses=[{**WAITING, "lastState": killed}])).failure is None


def test_a_pod_that_goes_has_no_failure() -> None:
    going = pod("w", ready=False, containerStatuses=waiting("ImagePullBackOff"))
    going["metadata"]["deletionTimestamp"] = "2026-11-21T14:00:00Z"

    assert pod_view(going).failure is None


def test_the_address_is_that_of_a_running_pod() -> None:
    assert pod_view(pod("h", head=True)).ip == "10.0.0.7"
    assert pod_view(pod("h", head=True, phase="Pending")).ip is None


NOT_BEGUN: dict[str, Any] = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "True"}],
    "initContainerStatuses": waiting("PodInitializing"),
    "containerStatuses": waiting("PodInitializing"),
}
RUNS = [{**WAITING, "state": {"running": {}}}]


def event(message: str, reason: str = "FailedMount", **times: str) -> dict[str, Any]:
    return {"reason": reason, "message": message, **times}


def test_a_pod_whose_containers_have_not_begun_is_blocked() -> None:
    assert waits_for_volumes(pod("w", ready=False, **NOT_BEGUN))
    assert waits_for_volumes(pod("w", ready=False, **{**NOT_BEGUN, "containerStatuses": []}))


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"conditions": [{"type": "PodScheduled", "status": "False"}]},
        {"initContainerStatuses": RUNS},
        {"containerStatuses": waiting("ImagePullBackOff")},
    ],
    ids=["it runs", "it has no node", "a container has started", "an image is what it lacks"],
)
def test_any_other_pod_is_not(status: dict[str, Any]) -> None:
    assert not waits_for_volumes(pod("w", ready=False, **{**NOT_BEGUN, **status}))


def test_a_pod_that_goes_is_not_blocked() -> None:
    going = pod("w", ready=False, **NOT_BEGUN)
    going["metadata"]["deletionTimestamp"] = "2026-11-21T14:00:00Z"

    assert not waits_for_volumes(going)


def test_the_newest_word_about_its_volumes_says_what_holds_a_pod_up() -> None:
    message = 'MountVolume.SetUp failed for volume "tandem-api-keys" : secret "keys" not found'
    events = [
        event("Unable to attach", lastTimestamp="2026-11-21T14:00:00Z"),
        event(message, lastTimestamp="2026-11-21T14:02:00Z"),
        event("older", eventTime="2026-11-21T14:01:00.000000Z", lastTimestamp=""),
        event("Back-off", "BackOff", lastTimestamp="2026-11-21T14:03:00Z"),
    ]

    assert volume_problem("w", events) == (
        f"pod w waits for its volumes: {message}; create the Secret, or name another one"
    )
    assert volume_problem("w", events[:1]) == "pod w waits for its volumes: Unable to attach"
    assert volume_problem("w", events[3:]) is None


def test_a_secret_that_a_container_waits_for_is_missed() -> None:
    missing_secrets = waiting("CreateContainerConfigError", 'secret "tiny-token-1" not found')
    pods = [pod_view(pod("w", ready=False, containerStatuses=missing_secrets))]

    assert may_lack_secret("tiny-token-1", pods)
    assert not may_lack_secret("tiny-token-2", pods)
    assert not may_lack_secret("tiny-token-1", [pod_view(pod("w"))])


def test_a_head_that_has_ended_may_have_missed_its_token() -> None:
    """Beside a store the token is optional: the head starts without it, and ends."""
    ended = [{**WAITING, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]

    assert may_lack_secret(
        "t", [pod_view(pod("h", head=True, ready=False, containerStatuses=ended))]
    )
    assert not may_lack_secret("t", [pod_view(pod("w", ready=False, containerStatuses=ended))])
