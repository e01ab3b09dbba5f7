"""The interface by which a rank waits for another one outside of collectives; without torch."""

from collections.abc import Callable
from typing import Final, Protocol

ENDLESS: Final = 30
"""Times the longest silence: so long a rank may compute between two collectives where no prediction
says how long a step takes. An endless loop uses its processor as a long step does, but none is so
long."""
JOIN_TIMEOUT_S: Final = 120.0
"""Ranks load torch first, and perhaps weights."""


class Silence(Protocol):
    """The silence of a rank that this one waits for outside of collectives, as for its next step.

    It ends as that of a rank that is waited for in a collective, and the same rank is blamed: the
    one whose turn it is.
    """

    def listen(self, seconds: float, *, begins: bool, has_come: Callable[[], bool]) -> None:
        """Add a time of waiting.

        Args:
            seconds: Time since the last call.
            begins: True if what was before does not count.
            has_come: True if what is waited for is there; asked before a rank is blamed, which may
                have left just because it has done all that it had to.

        Raises:
            CollectiveError: A rank has ended, or has been silent for too long.
        """

    def end(self) -> None:
        """Stop waiting."""


class _Unheard:
    """Implements `Silence` where a rank's progress is not known: it may take any time."""

    def listen(self, seconds: float, *, begins: bool, has_come: Callable[[], bool]) -> None:
        pass

    def end(self) -> None:
        pass


UNHEARD: Final[Silence] = _Unheard()
