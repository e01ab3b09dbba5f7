"""Decisions of the autoscaler in the status of a service → text; pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tandem_operator.commands.text import age_between, count_of
from tandem_operator.k8s.objects import Object

_SHOWN: Final = (
    "arrivalRate",
    "capacityPerReplica",
    "ongoingRequests",
    "concurrencyPerReplica",
    "ttftRatio",
    "tpotRatio",
    "queueAgeRatio",
    "kvUsage",
)
"""Inputs in the table, where a decision has them; the status has all."""


def last_decision_text(service: Object, now: str) -> str:
    """Return the newest decision as a sentence; empty: the autoscaler decides nothing here."""
    mode = ((service.get("spec") or {}).get("scaling") or {}).get("mode", "Manual")
    decisions = _decisions(service)
    if mode not in {"Auto", "Recommend"} or not decisions:
        return ""
    last = decisions[-1]
    verb = "decides for" if mode == "Auto" else "would take"
    since = age_between(last["firstTime"], now)
    return (
        f"the autoscaler {verb} {last['replicas']} since {since} ago ({last['reason']}: "
        f"{last['message']})"
    )


def decision_lines(service: Object, now: str) -> Iterator[str]:
    """Yield the decisions of a service, the newest first, each with the figures behind it."""
    decisions = _decisions(service)
    yield ""
    if not decisions:
        yield "The autoscaler has decided nothing; it does in modes Auto and Recommend."
        return
    for decision in reversed(decisions):
        first, last = (
            age_between(decision["firstTime"], now),
            age_between(decision["lastTime"], now),
        )
        span = f"{first} ago" if first == last else f"{first} to {last} ago"
        replicas = count_of(decision["replicas"], "replica")
        yield f"{span}: {replicas}, {decision['reason']}: {decision['message']}"
        if figures := _figures(decision.get("inputs") or {}):
            yield f"    {figures}"


def _decisions(service: Object) -> list[dict[str, Any]]:
    scaling = (service.get("status") or {}).get("scaling") or {}
    return list(scaling.get("decisions") or ())


def _figures(inputs: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {inputs[name]:.3g}" for name in _SHOWN if name in inputs)
