"""Memory of the replicas' ranks → status.ranks; pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tandem_operator.ranks.figures import RankParts

PART_FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "process": "processBytes",
        "weights": "weightsBytes",
        "kv_cache": "kvCacheBytes",
        "host_cache": "hostCacheBytes",
        "step": "stepBytes",
    }
)
"""Part of a rank's memory, as its metric calls it → field of the status."""

_MOVED: Final = 0.02
"""Share by which sizes differ from one start of the same replica to the next."""

Document = dict[str, Any]


def ranks_document(replicas: Sequence[RankParts], now: str) -> Document | None:
    """Return status.ranks, for each rank the most that a replica's has; None: nothing is known.

    Args:
        replicas: Those that were read.
        now: This moment, as Kubernetes writes it.
    """
    if not replicas:
        return None
    ranks = sorted({rank for parts in replicas for rank in parts})
    return {
        "replicas": len(replicas),
        "measuredAt": now,
        "memory": [{"rank": rank, **_fullest(replicas, rank)} for rank in ranks],
    }


def _fullest(replicas: Sequence[RankParts], rank: int) -> Document:
    sizes = {
        field: max(parts.get(rank, {}).get(part, 0) for parts in replicas)
        for part, field in PART_FIELDS.items()
    }
    return {field: size for field, size in sizes.items() if size}


def is_due(before: Mapping[str, Any] | None, after: Document) -> bool:
    """Return True when `after` says something else."""
    if before is None or before.get("replicas") != after["replicas"]:
        return True
    was, now = before.get("memory", ()), after["memory"]
    return len(was) != len(now) or any(map(_differ, was, now))


def _differ(was: Mapping[str, int], now: Mapping[str, int]) -> bool:
    if was.keys() != now.keys() or was["rank"] != now["rank"]:
        return True
    return any(has_moved(was[name], size) for name, size in now.items())


def has_moved(was: int, now: int) -> bool:
    """Return True when sizes differ by more than from one start to the next."""
    return abs(now - was) > _MOVED * now
