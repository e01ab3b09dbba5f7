"""Applies the actions of a reconcile: the only writer of a service's objects."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from tandem_operator.clock import now_text
from tandem_operator.k8s import names
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import Conflict
from tandem_operator.k8s.kinds import CHILDREN, RAY_SERVICE, SECRET
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.k8s.owners import owner_reference
from tandem_operator.ray.token import RayToken
from tandem_operator.reconcile.change_stamp import stamped
from tandem_operator.reconcile.observation import Observation
from tandem_operator.reconcile.plan import (
    Action,
    ApplyObject,
    CreateToken,
    ObjectKey,
    key_of,
)

_log = logging.getLogger(__name__)


async def apply(
    kube: KubeClient, actions: Iterable[Action], observation: Observation, owner: Mapping[str, Any]
) -> None:
    """Carry out `actions` in their order; created objects belong to the object `owner`.

    Raises:
        KubeError: an action failed, and those after it were not tried.
    """
    for action in actions:
        match action:
            case CreateToken():
                await _create_token(kube, action.token, owner)
            case ApplyObject():
                await _apply_object(kube, _with_stamp(action.manifest, observation), observation)
            case _:
                assert_never(action)


def _with_stamp(manifest: Mapping[str, Any], observation: Observation) -> Mapping[str, Any]:
    if manifest["kind"] != RAY_SERVICE.name:
        return manifest
    return stamped(manifest, observation.children.objects.get(key_of(manifest)), now_text())


async def _create_token(kube: KubeClient, token: RayToken, owner: Mapping[str, Any]) -> None:
    """Create the Secret of the token; one usually exists, with the same value."""
    try:
        await kube.create(SECRET, _token_manifest(token, owner))
    except Conflict:
        return
    _log.info("created Secret %s/%s", owner["metadata"]["namespace"], token.secret)


def _token_manifest(token: RayToken, owner: Mapping[str, Any]) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.name,
        "metadata": {
            "name": token.secret,
            "namespace": metadata["namespace"],
            "labels": names.object_labels(metadata["name"]),
            "ownerReferences": [
                owner_reference(
                    api_version=owner["apiVersion"],
                    kind=owner["kind"],
                    name=metadata["name"],
                    uid=metadata["uid"],
                )
            ],
        },
        "type": "Opaque",
        # Ray's processes read it when they start: another token later would lock them out.
        "immutable": True,
        "stringData": {names.TOKEN_KEY: token.value},
    }


async def _apply_object(
    kube: KubeClient, manifest: Mapping[str, Any], observation: Observation
) -> None:
    """Server-side apply; an object that was missing is only created."""
    metadata = manifest["metadata"]
    there = observation.children.objects.get(ObjectKey(manifest["kind"], metadata["name"]))
    if there is not None:
        # The API server refuses when another object has taken the name meanwhile.
        uid = there["metadata"]["uid"]
        manifest = {**manifest, "metadata": {**metadata, "uid": uid}}
    await kube.apply(CHILDREN[manifest["kind"]], manifest, force=there is not None)
    _log.info(
        "%s %s %s",
        "created" if there is None else "applied",
        manifest["kind"],
        NamespacedName.of(manifest),
    )
