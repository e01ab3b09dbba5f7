"""Memory of the tokens that are known to be there; pure.

The operator may make Secrets and not read them, so it makes sure by making one: the API server
refuses a second one of the same name. That is a request and no write, and is done seldom.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class TokenDoubts(Generic[Key]):
    """The services whose token is known to be there. Moments are seconds of one clock."""

    def __init__(self, after_s: float) -> None:
        """`after_s` is how long a token counts as there that nobody has looked at."""
        self._after_s = after_s
        self._seen: dict[Key, tuple[str, float]] = {}

    def note(self, key: Key, secret: str, now: float) -> None:
        """Remember that the Secret of this name is there now."""
        self._seen[key] = secret, now

    def is_doubted(self, key: Key, secret: str, now: float) -> bool:
        """Return True when the Secret of this name may be missing."""
        known, seen_at = self._seen.get(key, ("", now))
        return known != secret or now - seen_at > self._after_s

    def clear(self, key: Key) -> None:
        """Forget a service that is gone."""
        self._seen.pop(key, None)
