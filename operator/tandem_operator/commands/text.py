"""Times, numbers and sentences as text; pure."""

import math
import re
from typing import Final

from tandem_operator.clock import seconds_between

_GIB: Final = 2**30
_MIB: Final = 2**20
_SIZES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# As kubectl does it: up to so many seconds, in this unit, with the rest in that one.
_FORMS: Final = (
    (120, "s", ""),
    (600, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (48 * 3600, "h", ""),
    (8 * 86400, "d", "h"),
    (math.inf, "d", ""),
)


def age_between(earlier: str, later: str) -> str:
    """Time between two moments, such as 45s, 12m, 3h20m, 5d."""
    seconds = max(0, int(seconds_between(earlier, later)))
    unit, small = next((unit, small) for limit, unit, small in _FORMS if seconds < limit)
    number, rest = divmod(seconds, _SIZES[unit])
    rest = rest // _SIZES[small] if small else 0
    return f"{number}{unit}{rest}{small}" if rest else f"{number}{unit}"


def count_of(number: int, thing: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def sentence(text: str) -> str:
    """One line that begins with a capital and ends with a full stop."""
    line = " ".join(text.split())
    line = line[:1].upper() + line[1:]
    return line if re.search(r"[.!?]$", line) else f"{line}."


def size_of(num_bytes: int) -> str:
    """Bytes in the unit that people read best, such as 20.9 MiB."""
    in_gib = num_bytes >= _GIB
    return f"{num_bytes / (_GIB if in_gib else _MIB):.1f} {'GiB' if in_gib else 'MiB'}"
