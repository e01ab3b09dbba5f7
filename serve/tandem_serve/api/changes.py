"""Differences between two versions of a service, and the cost of each; pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tandem_serve.api.spec import InferenceService


class ChangeClass(StrEnum):
    """Class of a change by its effect on the replicas, from cheap to costly.

    The value stands in `pendingChange.class`, and is the reason of an Event.
    """

    LIVE = "Live"
    IN_PLACE = "InPlace"
    REPLACE = "Replace"

    @property
    def words(self) -> str:
        """Return the class as it stands in a sentence."""
        return _WORDS[self]

    @property
    def meaning(self) -> str:
        """Return the effect."""
        return _MEANINGS[self]


_WORDS: Final = {
    ChangeClass.LIVE: "live",
    ChangeClass.IN_PLACE: "in place",
    ChangeClass.REPLACE: "replace",
}
_MEANINGS: Final = {
    ChangeClass.LIVE: "running replicas apply it between two steps",
    ChangeClass.IN_PLACE: "running replicas stay",
    ChangeClass.REPLACE: "new replicas take the place of the running ones",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs."""

    path: str
    old: Any
    new: Any
    change_class: ChangeClass


# The longest matching prefix decides.
_CLASSES: Final[Mapping[str, ChangeClass]] = {
    "metadata": ChangeClass.IN_PLACE,
    "spec.model": ChangeClass.REPLACE,
    "spec.engine": ChangeClass.REPLACE,
    "spec.engine.schedule": ChangeClass.LIVE,
    "spec.engine.schedule.cacheBlockSize": ChangeClass.REPLACE,
    "spec.slo": ChangeClass.LIVE,
    "spec.observability": ChangeClass.LIVE,
    "spec.observability.metricAliases": ChangeClass.REPLACE,
    "spec.server": ChangeClass.REPLACE,
    "spec.scaling": ChangeClass.IN_PLACE,
    "spec.resources": ChangeClass.REPLACE,
    "spec.runtime": ChangeClass.REPLACE,
    "spec.progressDeadlineSeconds": ChangeClass.IN_PLACE,
}


def classify(old: InferenceService, new: InferenceService) -> list[Change]:
    """Every field that differs between two versions of one service, in the order of the form.

    Defaults count as values: writing one down does not change the service.

    Raises:
        ValueError: the two are not versions of one service.
    """
    if old.name != new.name:
        raise ValueError(f"'{new.name}' is another service than '{old.name}', not a version of it")
    before, after = dict(leaves(old.resolved())), dict(leaves(new.resolved()))
    return [
        Change(path, before.get(path), after.get(path), class_of(path))
        for path in differing_paths(before, after)
    ]


def differing_paths(document: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the paths whose values differ: those of `document`, then those of `other` alone."""
    paths = [*document, *(path for path in other if path not in document)]
    return [path for path in paths if document.get(path) != other.get(path)]


def costliest(classes: Iterable[ChangeClass]) -> ChangeClass:
    """Return the class that does most to the replicas."""
    return max(classes, key=list(ChangeClass).index)


def class_of(path: str) -> ChangeClass:
    """Return the class of a change of the field at `path`, such as spec.engine.dtype.

    Raises:
        KeyError: no such field may change.
    """
    prefix = path
    while prefix:
        if prefix in _CLASSES:
            return _CLASSES[prefix]
        prefix = prefix.rpartition(".")[0]
    raise KeyError(path)


def leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything in `document` that is not a mapping."""
    for name, value in document.items():
        leaf_path = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            yield from leaves(value, leaf_path)
        else:
            yield leaf_path, value
