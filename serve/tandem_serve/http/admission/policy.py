"""The rule of admission; pure, so that it can be tested as a table.

Which of the requests that hold a slot run is the engine's choice; this rule bounds their sum.
A request weighs as much as the sequences that it makes: every choice, and every beam, of every
prompt costs the engine and the event loop as much as a request of its own.
"""

import math
from dataclasses import dataclass
from typing import Final

from tandem_serve.api.slots import max_in_flight

MIN_RETRY_AFTER_S: Final = 1
MAX_RETRY_AFTER_S: Final = 60
UNKNOWN_RETRY_AFTER_S: Final = 5
"""Used while nothing has finished yet and the rate is unknown."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The slots are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Too few slots are free."""

    num_in_flight: int
    """Sequences that hold a slot now."""
    max_in_flight: int
    retry_after_s: int
    """Whole seconds until enough slots should be free."""


Admission = Admitted | Refused


def admit(
    *,
    num_in_flight: int,
    max_link_num: int,
    num_new: int = 1,
    completions_per_s: float = 0.0,
) -> Admission:
    """Admit or refuse `num_new` sequences of one call together.

    Args:
        num_in_flight: sequences in process or waiting now.
        max_link_num: MindIE's maxLinkNum.
        num_new: sequences of the call.
        completions_per_s: recent rate at which sequences ended; 0 when it is not known.
    """
    allowed = max_in_flight(max_link_num)
    num_missing = num_in_flight + num_new - allowed
    if num_missing <= 0:
        return Admitted()
    return Refused(
        num_in_flight=num_in_flight,
        max_in_flight=allowed,
        retry_after_s=estimate_retry_after(num_missing, completions_per_s),
    )


def estimate_retry_after(num_missing: int, completions_per_s: float) -> int:
    """Whole seconds until `num_missing` slots should have become free, in [1, 60]."""
    if completions_per_s <= 0.0:
        return UNKNOWN_RETRY_AFTER_S
    seconds = num_missing / completions_per_s
    if seconds >= MAX_RETRY_AFTER_S:
        return MAX_RETRY_AFTER_S
    return max(MIN_RETRY_AFTER_S, math.ceil(seconds))


SMALL_BODY_BYTES: Final = 64 * 2**10
"""A body up to this is small: most requests are, and a server reads as much ahead anyway."""
LARGE_SHARE: Final = 0.5
"""Share of the budget that bodies above that may fill; the rest is kept for small ones."""


def admit_bytes(*, num_held: int, num_more: int, num_body: int, budget: int) -> bool:
    """Return True when a body may take `num_more` bytes of the budget of all bodies in flight.

    Large bodies are refused first, so that a few large requests cannot keep out many small ones.

    Args:
        num_held: bytes that all bodies hold now.
        num_more: bytes that this one asks for.
        num_body: bytes that this one will have, as far as known.
        budget: bytes that all bodies may hold.
    """
    allowed = budget if num_body <= SMALL_BODY_BYTES else int(LARGE_SHARE * budget)
    return num_held + num_more <= allowed
