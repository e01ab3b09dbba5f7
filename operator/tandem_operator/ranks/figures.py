"""A replica's own /metrics → the memory of its ranks; pure."""

import re
from collections.abc import Mapping
from typing import Final

_LINE: Final = re.compile(
    rb"^tandem_rank_memory_bytes\{([^}\n]{0,512})\} ([0-9.e+]{1,32})$", re.MULTILINE
)
_RANK: Final = re.compile(rb'(?:^|,)rank="([0-9]{1,3})"')
_PART: Final = re.compile(rb'(?:^|,)part="([a-z_]{1,32})"')
_MAX_BYTES: Final = 1 << 60

RankParts = Mapping[int, Mapping[str, int]]
"""Rank → part of its memory, as its metric calls it → bytes."""


def read_rank_parts(body: bytes) -> RankParts | None:
    """Return the memory of each rank in a text of Prometheus' format; None: it is not there."""
    parts: dict[int, dict[str, int]] = {}
    for labels, text in _LINE.findall(body):
        rank, part, value = _RANK.search(labels), _PART.search(labels), _bytes(text)
        if rank is None or part is None or value is None:
            return None
        parts.setdefault(int(rank[1]), {})[part[1].decode()] = value
    return parts or None


def _bytes(text: bytes) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value < _MAX_BYTES else None
