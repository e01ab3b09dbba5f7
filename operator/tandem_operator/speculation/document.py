"""Draft tokens of the replicas → status.speculation; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem_operator.clock import seconds_between
from tandem_operator.speculation.figures import Drafts

REFRESH_S: Final = 300.0
"""Seconds after which a share that moves little is written once more."""

_MOVED: Final = 0.05
_DIGITS: Final = 2

Document = dict[str, Any]


def speculation_document(
    replicas: Sequence[Mapping[str, Drafts]], ready: int, now: str
) -> Document:
    """Return status.speculation.

    Args:
        replicas: Draft tokens by method of the replicas that were read.
        ready: Replicas that answer.
        now: This moment, as Kubernetes writes it.
    """
    document: Document = {"replicas": len(replicas), "measuredAt": now}
    if not replicas:
        text = f"none of {ready} ready replicas shows its drafts" if ready else "no replica runs"
        return document | {"message": text}
    methods = [
        _of_method(name, replicas)
        for name in sorted({key for methods in replicas for key in methods})
    ]
    return document | {"methods": methods, "message": _message(methods, len(replicas))}


def is_due(before: Mapping[str, Any] | None, after: Document) -> bool:
    """Return True when `after` says something else, or its shares are newer or have moved."""
    if before is None or _essence(before) != _essence(after):
        return True
    if before.get("methods") == after.get("methods"):
        return False
    old, new = _shares(before), _shares(after)
    if any(abs(new[method] - old[method]) >= _MOVED for method in new):
        return True
    return seconds_between(before["measuredAt"], after["measuredAt"]) >= REFRESH_S


def _of_method(name: str, replicas: Sequence[Mapping[str, Drafts]]) -> Document:
    counts = [methods[name] for methods in replicas if name in methods]
    drafted = sum(count.drafted for count in counts)
    document: Document = {"method": name, "draftTokens": drafted}
    if drafted:
        accepted = sum(count.accepted for count in counts)
        document["acceptance"] = round(accepted / drafted, _DIGITS)
    return document


def _message(methods: Sequence[Document], number: int) -> str:
    replicas = "1 replica" if number == 1 else f"{number} replicas"
    checked = [method for method in methods if "acceptance" in method]
    if not checked:
        return f"no draft token was checked on {replicas} yet"
    shares = " and ".join(
        f"{method['acceptance']:.0%} of {method['draftTokens']} tokens of method {method['method']}"
        for method in checked
    )
    return f"{shares} were right, since the start of {replicas}"


def _shares(document: Mapping[str, Any]) -> dict[str, float]:
    return {
        method["method"]: method["acceptance"]
        for method in document.get("methods", ())
        if "acceptance" in method
    }


def _essence(document: Mapping[str, Any]) -> Document:
    """Return what is written at once when it changes: replicas, and the methods that drafted."""
    if "methods" not in document:
        return {name: value for name, value in document.items() if name != "measuredAt"}
    return {"replicas": document["replicas"], "methods": sorted(_shares(document))}
