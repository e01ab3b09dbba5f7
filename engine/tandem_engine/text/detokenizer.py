"""Tokens to text, piece by piece: whole characters only, and nothing past a stop string."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Decodes one growing output; a character whose bytes are incomplete is held back."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        text = self._stream.step(self._tokenizer, token_id)
        if text is None:
            self._pending.append(token_id)
            return ""
        self._pending.clear()
        return str(text)

    def flush(self) -> str:
        """What is still held back when the output ends, as U+FFFD where it is no character."""
        tokens, self._pending = self._pending, []
        return str(self._tokenizer.decode(tokens, skip_special_tokens=self._skip_special_tokens))


class StopStrings:
    """Finds the first stop string in a growing text and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Add `text`; return what may be shown now, and whether a stop string was met."""
        if not self._stops:
            return text, False
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        cut = len(self._held) - self._longest_beginning()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def flush(self) -> str:
        """What was held back when the output ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
