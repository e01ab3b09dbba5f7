"""A replica's own /metrics → its figures of micro-batches; pure."""

import math
import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(
    rb"^(?:tandem_micro_batch_(overlap_ratio|state|kv_blocks)|tandem_(kv_cache_blocks))"
    rb"\{([^}\n]{0,512})\} ([^ \n]{1,32})$",
    re.MULTILINE,
)
_PHASE: Final = re.compile(rb'(?:^|,)phase="(prefill|decode)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What micro-batches bring and cost in one replica."""

    cuts_prefill: bool
    """True where steps with prefill are cut if that is predicted to pay."""

    cuts_decode: bool
    overlap: float | None
    """Of the last hour, 0 to 1; None: no step was cut."""

    cost: int
    """KV blocks that there would be besides."""

    num_kv_blocks: int


def read_figures(body: bytes) -> Figures | None:
    """Return the figures in a text of Prometheus' format; None: there are none."""
    values: dict[bytes, float] = {}
    for name, blocks, labels, text in _LINE.findall(body):
        phase = _PHASE.search(labels)
        value = _number(text)
        if value is None:
            return None
        values[(name or blocks) + (b" " + phase[1] if phase else b"")] = value
    cost, num_kv_blocks = values.get(b"kv_blocks"), values.get(b"kv_cache_blocks")
    if cost is None or num_kv_blocks is None:
        return None
    return Figures(
        cuts_prefill=values.get(b"state prefill", 0.0) > 0,
        cuts_decode=values.get(b"state decode", 0.0) > 0,
        overlap=values.get(b"overlap_ratio"),
        cost=round(cost),
        num_kv_blocks=round(num_kv_blocks),
    )


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
