"""Reads the observed state of one service: its objects, its pods, and Ray's answers."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from tandem_operator import reasons
from tandem_operator.k8s import names
from tandem_operator.k8s.errors import Forbidden, KindMissing
from tandem_operator.k8s.kinds import (
    CHILDREN,
    CORE_SERVICE,
    EVENT,
    OPTIONAL,
    POD,
    RAY_CLUSTER,
    RAY_SERVICE,
    VOLUME_CLAIM,
)
from tandem_operator.k8s.objects import NamespacedName, Object
from tandem_operator.k8s.owners import owned_by
from tandem_operator.k8s.reader import Reader
from tandem_operator.ray.client import RayClient
from tandem_operator.ray.token import RayToken
from tandem_operator.reconcile.observation import Observation
from tandem_operator.reconcile.parsed_spec import ParsedSpec
from tandem_operator.reconcile.plan import ObjectKey, ObservedObjects, key_of
from tandem_operator.status.facts import Problem
from tandem_operator.status.pod_view import (
    PodView,
    may_lack_secret,
    pod_view,
    uses_claim,
    volume_problem,
    waits_for_volumes,
)
from tandem_operator.status.ray_view import clusters_named, clusters_not_running, own_heads
from tandem_serve.api.spec import InferenceService

_MAX_PODS_WITH_EVENTS: Final = 2
"""Pods whose Events are read in one reconcile: the others have the same cause."""

_MAX_EVENTS: Final = 50
"""Events of a pod that are read; the kubelet counts repeats in one Event."""


@dataclass(slots=True)
class _Optional:
    """Objects of kinds that a cluster need not have."""

    objects: dict[ObjectKey, Object] = field(default_factory=dict)
    missing_kinds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToken:
    """Ray's token, and whether its Secret was confirmed."""

    token: RayToken
    is_stale: bool
    """True when the Secret has not been confirmed for long."""


async def observe(
    reader: Reader,
    ray: RayClient,
    key: NamespacedName,
    parsed: ParsedSpec,
    *,
    uid: str,
    token: KnownToken,
) -> Observation:
    """Read everything that belongs to the service `key`, whose object has the id `uid`.

    Raises:
        KubeError: a request to the API server failed.
    """
    (objects, ray_clusters, has_kuberay), optional, pods = await asyncio.gather(
        _read_objects(reader, key, parsed),
        _read_optional(reader, key, parsed),
        reader.of_service(POD, key),
    )
    missing = await _find_missing(reader, key.namespace, parsed.service, pods)
    views = await _view_pods(reader, key.namespace, pods)
    ray_service = objects.get(_ray_key(key))
    is_ours = ray_service is not None and owned_by(ray_service, uid)
    heads = own_heads(ray_service, ray_clusters, views) if ray_service and is_ours else {}
    replies = await ray.ask(heads, key.name, key.namespace, token.token.value)
    starting = clusters_not_running(ray_service) if ray_service else []
    has_token = not token.is_stale and not may_lack_secret(token.token.secret, views)
    return Observation(
        children=ObservedObjects(objects=objects | optional.objects, has_token=has_token),
        pods=views,
        answers=replies.answers,
        ray_errors=replies.ray_errors,
        ray_clusters={
            name: ray_cluster for name, ray_cluster in ray_clusters.items() if name in starting
        },
        missing=missing,
        has_kuberay=has_kuberay,
        missing_kinds=optional.missing_kinds,
    )


async def _view_pods(reader: Reader, namespace: str, pods: Iterable[Object]) -> tuple[PodView, ...]:
    """Return the pods; those that wait for volumes with the reason in their Events."""
    views = []
    num_read = 0
    for pod in pods:
        view = pod_view(pod)
        if waits_for_volumes(pod) and num_read < _MAX_PODS_WITH_EVENTS:
            num_read += 1
            failure = volume_problem(view.name, await _events_about(reader, namespace, pod))
            view = replace(view, failure=failure)
        views.append(view)
    return tuple(views)


async def _events_about(reader: Reader, namespace: str, pod: Object) -> list[Object]:
    about = {"involvedObject.uid": pod["metadata"]["uid"], "type": "Warning"}
    try:
        return await reader.list(EVENT, namespace, fields=about, limit=_MAX_EVENTS)
    except Forbidden:
        # The status has one reason less; `kubectl describe pod` shows it.
        return []


async def _read_objects(
    reader: Reader, key: NamespacedName, parsed: ParsedSpec
) -> tuple[dict[ObjectKey, Object], dict[str, Object], bool]:
    """Return the objects of the desired names, the RayClusters, and True with KubeRay."""
    children = _child_keys(parsed)
    ray_key = _ray_key(key)
    (ray_service, clusters, has_kuberay), live = await asyncio.gather(
        _read_ray(reader, NamespacedName(key.namespace, ray_key.name)),
        asyncio.gather(*(_read_child(reader, key.namespace, child) for child in children)),
    )
    objects = dict(zip(children, live, strict=True)) | {ray_key: ray_service}
    there = {child: live for child, live in objects.items() if live is not None}
    return there, clusters, has_kuberay


async def _read_ray(
    reader: Reader, key: NamespacedName
) -> tuple[Object | None, dict[str, Object], bool]:
    """Return the RayService, the RayClusters that it names, and True with KubeRay."""
    try:
        ray_service = await reader.get(RAY_SERVICE, key)
    except KindMissing:
        return None, {}, False
    named = clusters_named(ray_service) if ray_service else []
    clusters = await asyncio.gather(
        *(reader.get(RAY_CLUSTER, NamespacedName(key.namespace, name)) for name in named)
    )
    pairs = zip(named, clusters, strict=True)
    return ray_service, {name: cluster for name, cluster in pairs if cluster is not None}, True


async def _read_optional(reader: Reader, key: NamespacedName, parsed: ParsedSpec) -> _Optional:
    """Return the objects of optional kinds, those included that the service is not to have."""
    optional = _Optional()
    for child in _optional_keys(parsed):
        try:
            live = await _read_child(reader, key.namespace, child)
        except (KindMissing, Forbidden):
            # Roles that an administrator keeps may be older than the kind here.
            optional.missing_kinds |= {child.kind}
            continue
        if live is not None:
            optional.objects[child] = live
    return optional


def _optional_keys(parsed: ParsedSpec) -> list[ObjectKey]:
    if parsed.desired is None:
        return []
    keys = map(key_of, (*parsed.desired.objects, *parsed.desired.emptied))
    return [key for key in keys if _is_optional(key)]


def _is_optional(key: ObjectKey) -> bool:
    return any(kind.name == key.kind for kind in OPTIONAL)


def _ray_key(key: NamespacedName) -> ObjectKey:
    return ObjectKey(RAY_SERVICE.name, names.ray_service(key.name))


async def _read_child(reader: Reader, namespace: str, key: ObjectKey) -> Object | None:
    kind = CORE_SERVICE if key.kind == CORE_SERVICE.name else CHILDREN[key.kind]
    return await reader.get(kind, NamespacedName(namespace, key.name))


def _child_keys(parsed: ParsedSpec) -> list[ObjectKey]:
    """Return the desired objects beside the RayService, and the endpoint that KubeRay makes.

    Of a spec that cannot be rendered, none.
    """
    if parsed.desired is None or parsed.service is None:
        return []
    keys = [key_of(manifest) for manifest in parsed.desired.objects]
    endpoint = ObjectKey(CORE_SERVICE.name, names.endpoint_service(parsed.service.name))
    others = (key for key in keys if key.kind != RAY_SERVICE.name and not _is_optional(key))
    return [endpoint, *others]


async def _find_missing(
    reader: Reader, namespace: str, service: InferenceService | None, pods: Iterable[Object]
) -> tuple[Problem, ...]:
    """Return the missing PersistentVolumeClaims, without which no pod would start.

    Secrets are not checked: the right to read one of any name is the right to read them all. The
    Events of the pods that wait for a Secret name it.
    """
    claims = dict[str | None, str]()
    for path, source in () if service is None else service.sources:
        # One that both name is the model's.
        claims.setdefault(source.claim, path)
    pods = list(pods)
    problems = [
        await _missing_claim(reader, namespace, claim, path)
        for claim, path in claims.items()
        # Kubernetes keeps a claim for as long as a pod uses it.
        if claim is not None and not any(uses_claim(pod, claim) for pod in pods)
    ]
    return tuple(problem for problem in problems if problem is not None)


async def _missing_claim(reader: Reader, namespace: str, name: str, field: str) -> Problem | None:
    try:
        claim = await reader.get(VOLUME_CLAIM, NamespacedName(namespace, name))
    except Forbidden:
        # The pods' own Events report it.
        return None
    if claim is not None:
        return None
    return Problem(
        reasons.CLAIM_MISSING,
        f"{field}: namespace '{namespace}' has no PersistentVolumeClaim '{name}'; "
        "create it, or name another source",
    )
