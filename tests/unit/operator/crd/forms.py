"""Forms of the tables: a manifest by what differs from the smallest one, and one with a fault."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

GOOD_SOURCE: Final = "file:///models/tiny"


def manifest(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The smallest good manifest, with the fields at the given paths set; None takes one away."""
    document: dict[str, Any] = {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": {"model": {"source": GOOD_SOURCE}},
    }
    return changed(document, changes or {})


def changed(document: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the fields at the given paths set; None takes one away."""
    result = deepcopy(document)
    for path, value in changes.items():
        _set(result, path, value)
    return result


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        document = document.setdefault(name, {})
    if value is None:
        del document[last]
    else:
        document[last] = deepcopy(value)


SCHEDULE: Final = "spec.engine.schedule"
SPLIT: Final = f"{SCHEDULE}.splitFuse"
RUNTIME: Final = "spec.runtime"
TRACING: Final = "spec.observability.tracing"
STORE: Final = f"{RUNTIME}.gcsFaultToleranceOptions"


@dataclass(frozen=True)
class Bad:
    """A manifest with one fault."""

    fault: str
    changes: dict[str, Any]
    field: str
    """Field that the API server names."""

    words: str
    """Part of the API server's message."""

    told: str = ""
    """Part of the operator's message; empty: the same."""


def wrong_value(path: str, value: Any, words: str, told: str = "") -> Bad:
    """One field with a wrong value."""
    return Bad(f"{path} {value!r:.40}", {path: value}, path, words, told)
