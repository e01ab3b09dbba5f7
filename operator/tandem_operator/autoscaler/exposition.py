"""A replica's own /metrics: the few lines that are compared with Prometheus; pure."""

import math
from dataclasses import dataclass
from typing import Final

from tandem_operator.autoscaler.signals import EXPOSED_AT, RECEIVED, STARTED_AT

_MAX_LINE: Final = 512
_NEEDED: Final = tuple(name.encode() for name in (RECEIVED, EXPOSED_AT, STARTED_AT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One replica as it shows itself. Moments are Unix time."""

    received: float
    """Requests that it has taken."""

    exposed_at: float | None
    """The moment at which it made its metrics."""

    started_at: float | None
    """The start of its process."""

    read_at: float
    """The moment of the request, by the operator's clock."""


def read_exposition(body: bytes, read_at: float) -> Reading | None:
    """Return the reading in a text of Prometheus' format; None: it lacks the counter.

    Only the needed lines are parsed: the text has hundreds, and a reading is made all the time.
    """
    values = {name: _value(body, name) for name in _NEEDED}
    received = values[_NEEDED[0]]
    if received is None:
        return None
    return Reading(
        received=received,
        exposed_at=values[_NEEDED[1]],
        started_at=values[_NEEDED[2]],
        read_at=read_at,
    )


def _value(body: bytes, name: bytes) -> float | None:
    """Return the sum of the samples of one name; None: there is none, or one is no number."""
    total, start = None, 0
    while (at := body.find(name, start)) >= 0:
        start = at + len(name)
        if at and body[at - 1 : at] != b"\n":
            continue
        end = body.find(b"\n", start)
        line = body[start : end if end >= 0 else len(body)]
        if len(line) > _MAX_LINE or line[:1] not in {b" ", b"{"}:
            continue
        value = _sample(line)
        if value is None:
            return None
        total = value if total is None else total + value
    return total


def _sample(line: bytes) -> float | None:
    """Return the value behind the labels, which have no quoted brace here."""
    parts = line.rpartition(b"}")[2].split()
    try:
        value = float(parts[0]) if parts else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
