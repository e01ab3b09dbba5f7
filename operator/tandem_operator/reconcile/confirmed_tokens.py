"""Tokens whose Secrets are known to exist; pure.

The operator may create Secrets and not read them, so it confirms one by creating it: the API server
refuses a second one of the same name. That is a request and no write, and is done seldom.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class ConfirmedTokens(Generic[Key]):
    """The services whose token was confirmed. Moments are seconds of one clock."""

    def __init__(self, after_s: float) -> None:
        """`after_s` is the time after which a confirmation is stale."""
        self._after_s = after_s
        self._confirmed_at: dict[Key, tuple[str, float]] = {}

    def confirm(self, key: Key, secret: str, now: float) -> None:
        """Record that the Secret of this name exists now."""
        self._confirmed_at[key] = secret, now

    def is_stale(self, key: Key, secret: str, now: float) -> bool:
        """Return True when the Secret of this name may be missing."""
        known, confirmed_at = self._confirmed_at.get(key, ("", now))
        return known != secret or now - confirmed_at > self._after_s

    def forget(self, key: Key) -> None:
        """Forget a service that is gone."""
        self._confirmed_at.pop(key, None)
