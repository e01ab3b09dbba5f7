"""Desired and observed objects → actions; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tandem_operator.k8s.owners import controller_of, is_being_deleted, owned_by
from tandem_operator.ray.token import RayToken
from tandem_operator.render.desired import Desired
from tandem_serve.api.quantity import parse_quantity

# Quantities are below these keys; Kubernetes respells them (1024Mi is 1Gi).
_AMOUNTS: Final = frozenset({"limits", "requests", "sizeLimit"})


class ObjectKey(NamedTuple):
    """One object in the namespace of its service."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedObjects:
    """The objects of one service as the API server has them."""

    objects: Mapping[ObjectKey, Mapping[str, Any]] = field(default_factory=dict)
    """The objects of the desired names, of any owner; also the endpoint's Service."""

    has_token: bool = False
    """True when the Secret of Ray's token is known to exist."""


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Create the Secret with Ray's token, unless it exists."""

    token: RayToken


@dataclass(frozen=True, slots=True)
class ApplyObject:
    """Write an object by server-side apply."""

    manifest: Mapping[str, Any]


Action = CreateToken | ApplyObject


class OwnershipConflict(Exception):
    """An object of a desired name belongs to another owner; the text names it."""


def plan(desired: Desired, observed: ObservedObjects) -> tuple[Action, ...]:
    """Return the actions that make `observed` equal to `desired`; none, when it is.

    Raises:
        OwnershipConflict: an object of a desired name belongs to another owner.
    """
    _check_owners(desired, observed)
    token = () if observed.has_token else (CreateToken(desired.token),)
    manifests = (*_differing(desired, observed), *_left_over(desired, observed))
    return (*token, *map(ApplyObject, manifests))


def key_of(manifest: Mapping[str, Any]) -> ObjectKey:
    """Return the kind and the name of a manifest."""
    return ObjectKey(manifest["kind"], manifest["metadata"]["name"])


def is_within(desired: Any, live: Any, *, is_amount: bool = False) -> bool:
    """Return True when everything in `desired` is in `live`, which may have more.

    Mappings may have further keys, such as defaults; lists are compared element by element.
    `is_amount` compares quantities by value.
    """
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping) and all(
            name in live and is_within(value, live[name], is_amount=is_amount or name in _AMOUNTS)
            for name, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(live, list)
            and len(desired) == len(live)
            and all(
                is_within(item, other, is_amount=is_amount)
                for item, other in zip(desired, live, strict=True)
            )
        )
    return _is_same(desired, live) or (is_amount and _is_same_amount(desired, live))


def _differing(desired: Desired, observed: ObservedObjects) -> Iterator[Mapping[str, Any]]:
    for manifest in desired.objects:
        live = observed.objects.get(key_of(manifest))
        # An object that is being deleted cannot be changed; its end comes as an event, and then
        # it is created again.
        if live is None or not (is_being_deleted(live) or _is_applied(manifest, live)):
            yield manifest


def _left_over(desired: Desired, observed: ObservedObjects) -> Iterator[Mapping[str, Any]]:
    """Yield the empty manifests of objects that the service made for another spec."""
    for manifest in desired.emptied:
        ours = manifest["metadata"]["ownerReferences"][0]["uid"]
        live = observed.objects.get(key_of(manifest))
        if live is None or not owned_by(live, ours) or is_being_deleted(live):
            continue
        if not _is_applied(manifest, live):
            yield manifest


def _is_applied(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return True when `live` has all of `manifest`.

    The annotation with the hash of the manifest is part of it: it alone differs when a field is no
    longer rendered, and applying once more removes the field.
    """
    return is_within(_comparable(manifest), _comparable(live))


def _comparable(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return `manifest` without its owners: others may be added, and ours is checked apart."""
    metadata = {
        name: value for name, value in manifest["metadata"].items() if name != "ownerReferences"
    }
    return {**manifest, "metadata": metadata}


def _check_owners(desired: Desired, observed: ObservedObjects) -> None:
    for manifest in desired.objects:
        live = observed.objects.get(key_of(manifest))
        if live is not None:
            _check_owner(manifest, live)
    _check_endpoint(desired, observed)


def _check_owner(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> None:
    ours = manifest["metadata"]["ownerReferences"][0]
    owner = controller_of(live)
    kind, name = key_of(manifest)
    if owner is None:
        raise OwnershipConflict(
            f"{kind} '{name}' already exists and is not controlled by this InferenceService; "
            "delete it or give the InferenceService another name"
        )
    if owner.get("uid") == ours["uid"]:
        return
    if (owner.get("kind"), owner.get("name")) == (ours["kind"], ours["name"]):
        raise OwnershipConflict(
            f"{kind} '{name}' belongs to an earlier InferenceService of this name, which is being "
            "deleted; it is created again when that one is gone"
        )
    raise OwnershipConflict(
        f"{kind} '{name}' already exists and belongs to {owner.get('kind')} "
        f"'{owner.get('name')}'; give the InferenceService another name"
    )


def _check_endpoint(desired: Desired, observed: ObservedObjects) -> None:
    """Refuse to let KubeRay overwrite another owner's Service of the desired name."""
    for manifest in desired.objects:
        endpoint = manifest["spec"].get("serveService")
        if endpoint is None:
            continue
        name = endpoint["metadata"]["name"]
        live = observed.objects.get(ObjectKey("Service", name))
        if live is None:
            continue
        owner = controller_of(live) or {}
        if (owner.get("kind"), owner.get("name")) != tuple(key_of(manifest)):
            raise OwnershipConflict(
                f"Service '{name}' already exists and is not the endpoint of this "
                "InferenceService; delete it or give the InferenceService another name"
            )


def _is_same(desired: Any, live: Any) -> bool:
    # True equals 1 in Python, and nowhere else.
    return bool(desired == live) and isinstance(desired, bool) == isinstance(live, bool)


def _is_same_amount(desired: Any, live: Any) -> bool:
    amount = parse_quantity(str(desired))
    return amount is not None and amount == parse_quantity(str(live))
