"""The last known objects of the watched kinds, as an informer keeps them; pure.

Three sources fill it, in any order: events of the watches, LISTs of the resync, and the API
server's answers to the operator's own writes. Of two versions of an object the newer one stays
(resource versions grow), and a LIST ends what it does not have and what is not newer than it.

Objects are kept as JSON: that takes a fraction of the memory, and every reader has its own copy.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from tandem_operator.k8s.kinds import Kind
from tandem_operator.k8s.names import SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object, is_older, version_of, version_order

_DROPPED: Final = "fieldsV1"
"""The largest part of managedFields, which no reconcile reads."""

_JSON: Final = msgspec.json.Decoder(Object)


class _Version(NamedTuple):
    """A version of an object."""

    version: str
    service: NamespacedName | None
    """The service whose label the object carries."""

    text: bytes
    """The object as JSON."""


@dataclass(slots=True)
class _KindObjects:
    objects: dict[NamespacedName, _Version] = field(default_factory=dict)
    deleted: dict[NamespacedName, str] = field(default_factory=dict)
    """Version at which an object was deleted, until a LIST is newer."""

    by_service: defaultdict[NamespacedName | None, set[NamespacedName]] = field(
        default_factory=lambda: defaultdict(set)
    )
    listed: dict[str | None, str] = field(default_factory=dict)
    """Version of the last LIST by namespace; None stands for all."""

    def is_outdated(self, key: NamespacedName, version: str) -> bool:
        """Return True when this version of an object, or a newer one, is known."""
        if (there := self.objects.get(key)) is not None:
            return not is_older(there.version, version)
        gone = (self.deleted.get(key), self.listed.get(None), self.listed.get(key.namespace))
        return any(tombstone is not None and not is_older(tombstone, version) for tombstone in gone)

    def keep(self, key: NamespacedName, item: _Version) -> None:
        """Keep a version in place of the one before."""
        self.drop(key)
        self.objects[key] = item
        self.by_service[item.service].add(key)

    def drop(self, key: NamespacedName) -> None:
        """Drop an object, if it is there."""
        item = self.objects.pop(key, None)
        if item is None:
            return
        self.by_service[item.service].discard(key)
        if not self.by_service[item.service]:
            del self.by_service[item.service]

    def clear(self, namespace: str | None) -> None:
        """Drop everything about a namespace; None: about all."""
        self.listed.pop(namespace, None)
        for key in list(_within(self.objects, namespace)):
            self.drop(key)
        for key in list(_within(self.deleted, namespace)):
            del self.deleted[key]


class ObjectCache:
    """Objects of some kinds."""

    def __init__(self, kinds: Collection[Kind]) -> None:
        self._kinds: Final = {kind: _KindObjects() for kind in kinds}
        self.missing_kinds: Final = set[Kind]()
        """Optional kinds that the API server does not serve, as the watches found last."""

    def covers(self, kind: Kind, namespace: str) -> bool:
        """Return True when the objects of the kind in `namespace` are known."""
        known = self._kinds.get(kind)
        return known is not None and (None in known.listed or namespace in known.listed)

    def get(self, kind: Kind, key: NamespacedName) -> Object | None:
        """Return the object; None: it is not known."""
        if not self.covers(kind, key.namespace):
            return None
        item = self._kinds[kind].objects.get(key)
        return None if item is None else _JSON.decode(item.text)

    def of_service(self, kind: Kind, service: NamespacedName) -> list[Object]:
        """List the objects of the kind that carry the label of this service."""
        known = self._kinds[kind]
        keys = sorted(known.by_service.get(service, ()), key=str)
        return [_JSON.decode(known.objects[key].text) for key in keys]

    def keys(self, kind: Kind, namespace: str | None) -> list[NamespacedName]:
        """List the names of the objects in `namespace`; None: in all."""
        return list(_within(self._kinds[kind].objects, namespace))

    def put(self, kind: Kind, item: Mapping[str, Any]) -> None:
        """Keep `item`, unless a newer version or its deletion is known, or the kind is another."""
        known = self._kinds.get(kind)
        key = NamespacedName.of(item)
        if known is not None and not known.is_outdated(key, version_of(item)):
            known.keep(key, _stored(kind, item))

    def remove(self, kind: Kind, item: Mapping[str, Any]) -> None:
        """Drop an object that was deleted, unless something newer is known."""
        known = self._kinds[kind]
        key, version = NamespacedName.of(item), version_of(item)
        there = known.objects.get(key)
        if there is None or not is_older(version, there.version):
            known.drop(key)
            known.deleted[key] = max(version, known.deleted.get(key, ""), key=version_order)

    def replace(
        self, kind: Kind, namespace: str | None, items: Collection[Object], version: str
    ) -> None:
        """Take over a LIST of the namespace, None: of all, which was complete at `version`.

        LISTs of one namespace come in the order in which they were sent.
        """
        known = self._kinds[kind]
        if is_older(version, known.listed.get(namespace, "")):
            # Versions grow, unless the API server's store was restored from a backup.
            known.clear(namespace)
        for item in items:
            self.put(kind, item)
        there = {NamespacedName.of(item) for item in items}
        for key in self.keys(kind, namespace):
            if key not in there and not is_older(version, known.objects[key].version):
                known.drop(key)
        for key in list(_within(known.deleted, namespace)):
            if not is_older(version, known.deleted[key]):
                del known.deleted[key]
        known.listed[namespace] = version

    def forget(self, kind: Kind, namespace: str | None) -> None:
        """Cover a namespace no longer, None: all, until its next LIST."""
        self._kinds[kind].listed.pop(namespace, None)


def _stored(kind: Kind, item: Mapping[str, Any]) -> _Version:
    metadata = item["metadata"]
    service = (metadata.get("labels") or {}).get(SERVICE)
    return _Version(
        version=version_of(item),
        service=NamespacedName(metadata["namespace"], service) if service else None,
        text=msgspec.json.encode(_trimmed(kind, item)),
    )


def _trimmed(kind: Kind, item: Mapping[str, Any]) -> Object:
    """Return `item` with its kind, which a LIST leaves out, and without what is never read."""
    metadata = item["metadata"]
    managers = [
        {name: value for name, value in entry.items() if name != _DROPPED}
        for entry in metadata.get("managedFields") or ()
    ]
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        **item,
        "metadata": {**metadata, "managedFields": managers},
    }


def _within(keys: Collection[NamespacedName], namespace: str | None) -> Iterator[NamespacedName]:
    return (key for key in keys if namespace in {None, key.namespace})
