"""The answer to one streamed completion: its events, when they came, and whether it is right.

Pure. While the stream runs, nothing is parsed that does not have to be: an event is a line that
begins with `data:`, and only the last two are kept, which hold the usage and the end.
"""

import json
from collections import deque
from typing import Any, Final

from benchmarks.serving.http1 import ResponseParser
from benchmarks.serving.outcome import Failure
from tandem_engine.simulate.workload import Shape

_OK: Final = 200
_MAX_ERROR: Final = 4096
_DONE: Final = b"[DONE]"


class Reply:
    """Collects a response; `feed` it until `is_complete`."""

    def __init__(self) -> None:
        self._parser = ResponseParser()
        self._rest = b""
        self._error = b""
        self._times_s: list[float] = []
        self._tail: deque[bytes] = deque(maxlen=2)

    @property
    def is_complete(self) -> bool:
        """Nothing more belongs to it."""
        return self._parser.is_complete

    @property
    def keeps_alive(self) -> bool:
        """The connection can be used again."""
        return self._parser.keeps_alive

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what came at `now_s`."""
        body = self._parser.feed(data)
        if self._parser.status != _OK:
            self._error = (self._error + body)[:_MAX_ERROR]
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._times_s.append(now_s)
                self._tail.append(line)

    def end_of_connection(self) -> None:
        """Note that nothing more comes."""
        self._parser.end_of_connection()

    def judge(self, shape: Shape) -> tuple[list[float], Failure | None]:
        """The times of the answer's events, and what is wrong with it, if anything."""
        if self._parser.status != _OK:
            return [], _refusal(self._parser.status, self._error)
        events = [line[5:].strip() for line in self._tail]
        last = _parse(events[-1]) if events else {}
        if "error" in last:
            return [], Failure("error in the stream", _message_of(last))
        if not events or events[-1] != _DONE:
            return [], Failure("stream cut short", "The stream ended without [DONE].")
        usage_event = _parse(events[0])
        if "error" in usage_event:
            return [], Failure("error in the stream", _message_of(usage_event))
        # The usage comes with an event of its own, or with the answer's last.
        num_parts = len(self._times_s) - (1 if usage_event.get("choices") else 2)
        return self._times_s[:num_parts], _wrong_count(usage_event.get("usage"), shape, num_parts)


def _refusal(status: int, body: bytes) -> Failure:
    message = _message_of(_parse(body)) or body.decode(errors="replace").strip()[:200]
    return Failure(f"HTTP {status}", message or "The answer has no body.")


def _wrong_count(usage: Any, shape: Shape, num_parts: int) -> Failure | None:
    if not isinstance(usage, dict):
        return Failure("no usage", "The stream has no usage although include_usage was asked for.")
    seen = Shape(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))
    if seen != shape:
        return Failure(
            "wrong number of tokens",
            f"Asked for {shape.num_input} in and {shape.num_output} out; "
            f"the usage says {seen.num_input} and {seen.num_output}.",
        )
    if num_parts < 1:
        return Failure("no tokens", "The usage counts tokens, but no event brought one.")
    return None


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _message_of(document: dict[str, Any]) -> str:
    """The message of an error in OpenAI's form, or in one like it."""
    error = document.get("error", document)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or ""
    return str(error)[:500]
