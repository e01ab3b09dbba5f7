"""Memory of the ranks of a service in an explanation; pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from tandem_operator.commands.text import age_between, sentence, size_of
from tandem_operator.k8s.objects import Object

MEMORY: Final = "memory"

_PARTS: Final = (
    ("weightsBytes", "weights"),
    ("stepBytes", "largest step"),
    ("kvCacheBytes", "KV cache"),
    ("hostCacheBytes", "host blocks"),
)


def memory_lines(service: Object, now: str) -> list[str]:
    """Return a sentence for ranks that hold the same; none: no replica has been read yet."""
    found = (service.get("status") or {}).get("ranks") or {}
    ranks = found.get("memory") or ()
    if not ranks:
        return []
    age = age_between(found["measuredAt"], now)
    alike = [list(group) for _, group in groupby(ranks, lambda one: list(_sizes(one)))]
    return [
        sentence(f"{_subject(group, len(ranks))}: {_text(group)}; read {age} ago")
        for group in alike
    ]


def _subject(group: Sequence[Mapping[str, Any]], count: int) -> str:
    first, last = group[0]["rank"], group[-1]["rank"]
    if count == 1:
        return "a replica"
    return f"rank {first}" if first == last else f"each of ranks {first} to {last}"


def _text(group: Sequence[Mapping[str, Any]]) -> str:
    # What a process takes differs by a little from one to the next.
    process = max(one.get("processBytes", 0) for one in group)
    return ", ".join([*_sizes(group[0]), f"process {size_of(process)}"])


def _sizes(rank: Mapping[str, Any]) -> Iterator[str]:
    for field, name in _PARTS:
        if size := rank.get(field):
            yield f"{name} {size_of(size)}"
