"""Figures of the replicas → status.microBatch; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem_operator.clock import seconds_between
from tandem_operator.micro_batches.figures import Figures

REFRESH_S: Final = 300.0
"""Seconds after which an overlap that moves little is written once more."""

_MOVED: Final = 0.05
_DIGITS: Final = 2

Document = dict[str, Any]


def micro_batch_document(figures: Sequence[Figures], ready: int, now: str) -> Document:
    """Return status.microBatch.

    Args:
        figures: Those of the replicas that were read.
        ready: Replicas that answer.
        now: This moment, as Kubernetes writes it.
    """
    document: Document = {"replicas": len(figures), "measuredAt": now}
    if not figures:
        text = f"none of {ready} ready replicas shows its figures" if ready else "no replica runs"
        return document | {"message": text}
    overlaps = [replica.overlap for replica in figures if replica.overlap is not None]
    costliest = max(figures, key=lambda replica: replica.cost)
    document |= {
        "prefillReplicas": sum(replica.cuts_prefill for replica in figures),
        "decodeReplicas": sum(replica.cuts_decode for replica in figures),
        "kvBlocks": costliest.cost,
        "kvBlocksOf": costliest.cost + costliest.num_kv_blocks,
    }
    if overlaps:
        document["overlap"] = round(sum(overlaps) / len(overlaps), _DIGITS)
    return document | {"message": _message(document)}


def _message(document: Document) -> str:
    number = document["replicas"]
    cut = ", and ".join(
        f"{steps} on {document[name]} of {number}"
        for steps, name in (
            ("steps with prefill are cut", "prefillReplicas"),
            ("decode steps", "decodeReplicas"),
        )
    )
    replicas = "replica" if number == 1 else "replicas"
    overlap = document.get("overlap")
    brings = (
        "no step was cut in the last hour"
        if overlap is None
        else f"{overlap:.0%} of what could overlap did in the last hour"
    )
    return (
        f"{cut} {replicas}; {brings}; they cost {document['kvBlocks']} of "
        f"{document['kvBlocksOf']} KV blocks of a replica"
    )


def is_due(before: Mapping[str, Any] | None, after: Document) -> bool:
    """Return True when `after` says something else, or its overlap is much newer or has moved."""
    if before is None or _essence(before) != _essence(after):
        return True
    old, new = before.get("overlap"), after.get("overlap")
    if old == new:
        return False
    if old is None or new is None or abs(new - old) >= _MOVED:
        return True
    return seconds_between(before["measuredAt"], after["measuredAt"]) >= REFRESH_S


def _essence(document: Mapping[str, Any]) -> Document:
    moving = {"measuredAt", "overlap", "message"}
    return {name: value for name, value in document.items() if name not in moving}
