"""Pods → their views, with the reason that keeps them from running; pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem_operator.k8s import names
from tandem_operator.k8s.owners import controller_of, is_being_deleted
from tandem_operator.status.conditions import find_condition

CLUSTER: Final = names.RAY_CLUSTER
"""KubeRay's label of a pod: the RayCluster that it belongs to."""

_NODE_TYPE: Final = "ray.io/node-type"
_SERVES: Final = "ray.io/serve"

_PERMANENT_WAITS: Final[Mapping[str, str]] = {
    "ImagePullBackOff": "cannot pull the image '{image}'",
    "ErrImagePull": "cannot pull the image '{image}'",
    "ErrImageNeverPull": "may not pull the image '{image}', and the node does not have it",
    "InvalidImageName": "has an invalid image name '{image}'",
    "CreateContainerConfigError": "cannot be configured",
    "CreateContainerError": "cannot be created",
    "RunContainerError": "cannot be started",
    "CrashLoopBackOff": "keeps crashing",
}
"""Reasons of a waiting container that do not resolve by themselves."""

_NOT_STARTED: Final = frozenset({"ContainerCreating", "PodInitializing"})
_VOLUME_FAILURES: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
# The kubelet's message, for a volume and for a variable alike.
_MISSING_SECRET: Final = re.compile(r'secret "([^"]+)" not found')


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod of a Ray cluster."""

    name: str
    cluster: str
    """The RayCluster that it belongs to."""

    is_head: bool
    is_ready: bool
    ip: str | None
    """Its address, once it runs."""

    failure: str | None
    """Reason that keeps it from running, in one sentence."""

    is_behind_endpoint: bool = False
    """True for a pod to which the endpoint sends requests when it is ready, by KubeRay's label."""

    owner: str | None = None
    """The uid of the object that controls it."""

    missing_secrets: frozenset[str] = frozenset()
    """Secrets that its containers wait for, by name."""


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """Return the view of a pod of the API server."""
    metadata, status = pod["metadata"], pod.get("status", {})
    labels = metadata.get("labels", {})
    is_ready = find_condition(status, "Ready").get("status") == "True"
    return PodView(
        name=metadata["name"],
        cluster=labels.get(CLUSTER, ""),
        is_head=labels.get(_NODE_TYPE) == "head",
        is_ready=is_ready,
        ip=status.get("podIP") if status.get("phase") == "Running" else None,
        failure=None if is_ready or is_being_deleted(pod) else _failure(pod),
        is_behind_endpoint=labels.get(_SERVES) == "true",
        owner=(controller_of(pod) or {}).get("uid"),
        missing_secrets=_missing_secrets(status),
    )


def may_lack_secret(secret: str, pods: Iterable[PodView]) -> bool:
    """Return True when a pod waits for the Secret, or a head has ended, maybe without it."""
    return any(secret in pod.missing_secrets or (pod.is_head and pod.failure) for pod in pods)


def waits_for_volumes(pod: Mapping[str, Any]) -> bool:
    """Return True when the pod has a node and no container has started: volumes may be missing."""
    status = pod.get("status", {})
    if status.get("phase") != "Pending" or is_being_deleted(pod):
        return False
    has_node = find_condition(status, "PodScheduled").get("status") == "True"
    states = [container.get("state", {}) for container in _container_statuses(status)]
    return has_node and all(
        state.get("waiting", {}).get("reason") in _NOT_STARTED for state in states
    )


def uses_claim(pod: Mapping[str, Any], claim: str) -> bool:
    """Return True when the pod is ready with the PersistentVolumeClaim, which so must exist."""
    volumes = pod["spec"].get("volumes") or ()
    is_ready = find_condition(pod.get("status", {}), "Ready").get("status") == "True"
    return is_ready and any(
        (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim for volume in volumes
    )


def volume_problem(name: str, events: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the newest Event about volumes of a pod as one sentence; None: there is none."""
    failures = [event for event in events if event.get("reason") in _VOLUME_FAILURES]
    if not failures:
        return None
    message = max(failures, key=_last_time).get("message", "")
    way_out = "; create the Secret, or name another one" if _MISSING_SECRET.search(message) else ""
    return _sentence(f"pod {name} waits for its volumes", message) + way_out


def _last_time(event: Mapping[str, Any]) -> str:
    times = ("lastTimestamp", "eventTime", "firstTimestamp")
    return next((event[name] for name in times if event.get(name)), "")


def _missing_secrets(status: Mapping[str, Any]) -> frozenset[str]:
    messages = (
        container.get("state", {}).get("waiting", {}).get("message") or ""
        for container in _container_statuses(status)
    )
    return frozenset(name for text in messages for name in _MISSING_SECRET.findall(text))


def _failure(pod: Mapping[str, Any]) -> str | None:
    return next(_failures(pod), None)


def _failures(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield all failures, the most specific first."""
    name, status = f"pod {pod['metadata']['name']}", pod.get("status", {})
    scheduled = find_condition(status, "PodScheduled")
    if scheduled.get("reason") == "Unschedulable":
        yield _sentence(f"{name} cannot be scheduled", scheduled.get("message"))
    if status.get("phase") == "Failed" and status.get("reason"):
        yield _sentence(f"{name} has failed with {status['reason']}", status.get("message"))
    for container in _container_statuses(status):
        what = f"container {container['name']} of {name}"
        yield from _container_failures(what, container, memory=_memory_field(pod))


def _container_statuses(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _memory_field(pod: Mapping[str, Any]) -> str:
    """Return the field that sets the pod's memory: the spec's, or for the head the operator's."""
    is_head = pod["metadata"].get("labels", {}).get(_NODE_TYPE) == "head"
    return "settings.replica.headResources of the operator" if is_head else "resources.memory"


def _container_failures(name: str, container: Mapping[str, Any], *, memory: str) -> Iterator[str]:
    now, before = container.get("state", {}), container.get("lastState", {})
    for ended in (now.get("terminated"), before.get("terminated")):
        if ended and ended.get("reason") == "OOMKilled":
            yield f"{name} was killed for using more than its memory limit; raise {memory}"
    waiting = now.get("waiting", {})
    if template := _PERMANENT_WAITS.get(waiting.get("reason", "")):
        what = f"{name} {template.format(image=container.get('image', ''))}"
        yield _sentence(what, waiting.get("message") or waiting["reason"])
    ended = now.get("terminated")
    if ended and ended.get("exitCode"):
        yield _sentence(f"{name} ended with code {ended['exitCode']}", ended.get("message"))


def _sentence(what: str, why: str | None) -> str:
    return f"{what}: {' '.join(why.split())}" if why else what
