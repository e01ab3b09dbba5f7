"""A replica's own /metrics → its draft tokens by method; pure."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(
    rb"^tandem_(accepted_)?draft_tokens_total\{([^}\n]{0,512})\} ([^ \n]{1,32})$", re.MULTILINE
)
_METHOD: Final = re.compile(rb'(?:^|,)method="([a-z]{1,16})"')


@dataclass(frozen=True, slots=True)
class Drafts:
    """Draft tokens of one method since the replica started."""

    drafted: int
    accepted: int


def read_drafts(body: bytes) -> Mapping[str, Drafts] | None:
    """Return the drafts by method in a text of Prometheus' format; None: there are none."""
    drafted, accepted = Counter[str](), Counter[str]()
    for is_accepted, labels, text in _LINE.findall(body):
        method, number = _METHOD.search(labels), _count(text)
        if method is None or number is None:
            return None
        (accepted if is_accepted else drafted)[method[1].decode()] += number
    if not drafted:
        return None
    return {method: Drafts(drafted[method], accepted[method]) for method in drafted}


def _count(text: bytes) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return round(value) if math.isfinite(value) and value >= 0 else None
