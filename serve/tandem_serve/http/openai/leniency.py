"""Unknown fields of a request: left out and named, or refused where the service is strict.

Programs send fields of servers that they were made for; refusing those kept whole programs out.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from tandem_serve.http.errors import truncate
from tandem_serve.http.openai.messages import KNOWN_OF_MESSAGE
from tandem_serve.http.openai.protocol import MAX_MESSAGES, RequestModel, StreamOptions

logger = logging.getLogger(__name__)

HEADER: Final = "x-tandem-ignored-fields"
MAX_NAMED: Final = 16
"""Fields that one answer names; names come from callers, and headers are short."""
_MAX_LOGGED: Final = 256


class IgnoredFields:
    """Names that were ignored before: each is logged once, and a bounded number of them."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, names: list[str]) -> None:
        """Log those names that are new."""
        for name in names:
            if name not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(name)
                logger.warning(
                    "Requests have the unknown field %s, which is ignored; spec.server.strict "
                    "refuses it. This is logged once.",
                    name,
                )


def drop_unknown(
    model: type[RequestModel], document: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The document without unknown fields, and the first of their names, as ASCII.

    One that is null asks for nothing, and has no name in the answer.
    Those within `stream_options` and within messages count, too: `messages[].name`.
    """
    known, names = _split(document, model.known(), "")
    options = known.get("stream_options")
    if isinstance(options, dict):
        known["stream_options"], more = _split(options, StreamOptions.known(), "stream_options.")
        names |= more
    messages = known.get("messages")
    # A list that is too long is refused by its length.
    if isinstance(messages, list) and len(messages) <= MAX_MESSAGES:
        known["messages"] = list(_without_unknown(messages, names))
    return known, [*names][:MAX_NAMED]


def _without_unknown(messages: list[Any], names: dict[str, None]) -> Iterator[Any]:
    for message in messages:
        if not isinstance(message, dict):
            yield message
            continue
        kept, more = _split(message, KNOWN_OF_MESSAGE, "messages[].")
        names |= more
        yield kept


def _split(
    document: Mapping[str, Any], known: frozenset[str], prefix: str
) -> tuple[dict[str, Any], dict[str, None]]:
    """The known fields, and the names of some others, in the order in which they came."""
    kept: dict[str, Any] = {}
    names: dict[str, None] = {}
    for name, value in document.items():
        if name in known:
            kept[name] = value
        elif value is not None and len(names) < MAX_NAMED:
            # What a caller named may hold line ends, and has to fit into a header.
            names[prefix + quote(truncate(name), safe=" ")] = None
    return kept, names
