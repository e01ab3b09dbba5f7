"""Messages within the lengths that Kubernetes takes; pure."""

from typing import Final

MAX_CONDITION_MESSAGE: Final = 4096
"""Characters of a condition's message; Kubernetes allows 32768, more than a page."""

MAX_EVENT_MESSAGE: Final = 1024
"""Characters of an Event's message; Kubernetes allows no more."""


def shorten(message: str, limit: int) -> str:
    """Return the message, cut where it is longer than `limit`."""
    return message if len(message) <= limit else message[: limit - 1] + "…"
