"""What is desired against what is there → what to do; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tandem_operator.k8s.owners import controller_of, is_being_deleted
from tandem_operator.ray.token import RayToken
from tandem_operator.render.desired import Desired
from tandem_serve.api.quantity import parse_quantity

# Amounts stand below these keys; Kubernetes respells them (1024Mi is 1Gi).
_AMOUNTS: Final = frozenset({"limits", "requests", "sizeLimit"})


class ObjectKey(NamedTuple):
    """One object in the namespace of its service."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedObjects:
    """What the API server has of one service."""

    objects: Mapping[ObjectKey, Mapping[str, Any]] = field(default_factory=dict)
    """The objects of the desired names, ours or not; the endpoint's Service may be among them."""

    has_token: bool = False
    """Whether the Secret of Ray's token is there, as far as is known."""


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Make the Secret with Ray's token, unless it is there."""

    token: RayToken


@dataclass(frozen=True, slots=True)
class ApplyObject:
    """Write an object, by server-side apply."""

    manifest: Mapping[str, Any]


Action = CreateToken | ApplyObject


class OwnershipConflict(Exception):
    """An object of a desired name exists, and is not ours; the text says which."""


def plan(desired: Desired, observed: ObservedObjects) -> tuple[Action, ...]:
    """What to do so that `observed` becomes `desired`; nothing, when it is so already.

    Raises:
        OwnershipConflict: an object of a desired name belongs to somebody else.
    """
    _check_owners(desired, observed)
    token = () if observed.has_token else (CreateToken(desired.token),)
    return (*token, *(ApplyObject(manifest) for manifest in _differing(desired, observed)))


def key_of(manifest: Mapping[str, Any]) -> ObjectKey:
    """Which object a manifest is."""
    return ObjectKey(manifest["kind"], manifest["metadata"]["name"])


def is_within(desired: Any, found: Any, *, is_amount: bool = False) -> bool:
    """Whether everything in `desired` is in `found`, which may say more.

    Mappings may have further keys, such as defaults; lists are compared element by element.
    `is_amount` lets one amount be spelled in two ways.
    """
    if isinstance(desired, Mapping):
        return isinstance(found, Mapping) and all(
            name in found and is_within(value, found[name], is_amount=is_amount or name in _AMOUNTS)
            for name, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(found, list)
            and len(desired) == len(found)
            and all(
                is_within(one, other, is_amount=is_amount)
                for one, other in zip(desired, found, strict=True)
            )
        )
    return _is_same(desired, found) or (is_amount and _is_same_amount(desired, found))


def _differing(desired: Desired, observed: ObservedObjects) -> Iterator[Mapping[str, Any]]:
    for manifest in desired.objects:
        found = observed.objects.get(key_of(manifest))
        # A dying object cannot be mended; its end comes as an event, and then it is made anew.
        if found is None or not (is_being_deleted(found) or _is_applied(manifest, found)):
            yield manifest


def _is_applied(manifest: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether `found` has all of `manifest`.

    The annotation with the hash of the manifest is part of it: a field that is no longer rendered
    changes nothing else that could be missed, and is removed by applying once more.
    """
    return is_within(_comparable(manifest), _comparable(found))


def _comparable(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """`manifest` without its owners, whom others may add to; ours is checked on its own."""
    metadata = {
        name: value for name, value in manifest["metadata"].items() if name != "ownerReferences"
    }
    return {**manifest, "metadata": metadata}


def _check_owners(desired: Desired, observed: ObservedObjects) -> None:
    for manifest in desired.objects:
        found = observed.objects.get(key_of(manifest))
        if found is not None:
            _check_owner(manifest, found)
    _check_endpoint(desired, observed)


def _check_owner(manifest: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    ours = manifest["metadata"]["ownerReferences"][0]
    owner = controller_of(found)
    kind, name = key_of(manifest)
    if owner is None:
        raise OwnershipConflict(
            f"{kind} '{name}' exists already and was not made for this InferenceService; delete it "
            "or give the InferenceService another name"
        )
    if owner.get("uid") == ours["uid"]:
        return
    if (owner.get("kind"), owner.get("name")) == (ours["kind"], ours["name"]):
        raise OwnershipConflict(
            f"{kind} '{name}' belongs to an earlier InferenceService of this name, which is being "
            "deleted; it is made anew when that one is gone"
        )
    raise OwnershipConflict(
        f"{kind} '{name}' exists already and belongs to {owner.get('kind')} "
        f"'{owner.get('name')}'; give the InferenceService another name"
    )


def _check_endpoint(desired: Desired, observed: ObservedObjects) -> None:
    """Refuse to let KubeRay take over somebody's Service: it overwrites one of the desired name."""
    for manifest in desired.objects:
        endpoint = manifest["spec"].get("serveService")
        if endpoint is None:
            continue
        name = endpoint["metadata"]["name"]
        found = observed.objects.get(ObjectKey("Service", name))
        if found is None:
            continue
        owner = controller_of(found) or {}
        if (owner.get("kind"), owner.get("name")) != tuple(key_of(manifest)):
            raise OwnershipConflict(
                f"Service '{name}' exists already and is no endpoint of this InferenceService; "
                "delete it or give the InferenceService another name"
            )


def _is_same(desired: Any, found: Any) -> bool:
    # True equals 1 in Python, and nowhere else.
    return bool(desired == found) and isinstance(desired, bool) == isinstance(found, bool)


def _is_same_amount(desired: Any, found: Any) -> bool:
    amount = parse_quantity(str(desired))
    return amount is not None and amount == parse_quantity(str(found))
