"""Tokens to text, piece by piece and whole characters only."""

from collections.abc import Sequence
from typing import Final, Protocol

from tokenizers import Tokenizer

from tandem_engine.text.vocabulary import (
    REPLACEMENT,
    PromptEnd,
    Vocabulary,
    prompt_end,
    whole_characters,
)

_CONTEXT_TOKENS: Final = 6
"""Tokens of a prompt that a decoder of an unknown kind sees before the first of the output."""
_MOST_HELD: Final = 4
"""Tokens that such a decoder may hold back for one character: it has four bytes at most."""


class Detokenizer(Protocol):
    """Decodes one growing output; a character whose bytes are incomplete is held back.

    All pieces together are the decoded text of prompt and output less that of the prompt. There
    is one difference to `transformers`: of a run of byte-fallback tokens that is no UTF-8 it shows
    no character at all, and here those stay that came before the first wrong byte.
    """

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""

    def flush(self) -> str:
        """Text that is still held back when the output ends, U+FFFD where it is no character."""


class PromptContext:
    """A prompt as the detokenizers of the choices that go on from it see it.

    Args:
        tokenizer: The checkpoint's.
        vocabulary: Texts of its tokens; None: its decoder is of another kind.
        prompt: The prompt's tokens.
        skip_special_tokens: Leave special tokens out of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary | None,
        prompt: Sequence[int],
        *,
        skip_special_tokens: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._prompt = prompt
        self._skips = skip_special_tokens
        self._end: PromptEnd | None = None
        if vocabulary is not None:
            pieces = vocabulary.without_special if self._skips else vocabulary.all
            self._end = prompt_end(pieces, prompt)

    def detokenizer(self) -> Detokenizer:
        """A decoder for one output that goes on from the prompt."""
        if self._vocabulary is None or self._end is None:
            tail = self._prompt[-_CONTEXT_TOKENS:]
            return WindowDetokenizer(self._tokenizer, tail, skip_special_tokens=self._skips)
        return TableDetokenizer(self._vocabulary, self._end, skip_special_tokens=self._skips)


class TableDetokenizer:
    """Looks each token up, and joins the bytes of characters that are spread over tokens."""

    def __init__(
        self, vocabulary: Vocabulary, end: PromptEnd, *, skip_special_tokens: bool
    ) -> None:
        self._vocabulary = vocabulary
        self._pieces = vocabulary.without_special if skip_special_tokens else vocabulary.all
        self._errors = vocabulary.kind.errors
        self._opens = end.is_empty
        self._half = end.half_character
        # The text of the prompt shows its half character; where it stays one, it is not repeated.
        self._shown_before = len(self._half.decode(errors=self._errors))
        self._is_plain = not self._opens and not self._half

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        piece = self._pieces[token_id]
        if self._is_plain and isinstance(piece, str):
            return piece
        return self._join(token_id, piece)

    def flush(self) -> str:
        """Text that is still held back when the output ends, U+FFFD where it is no character."""
        data, self._half = self._half, b""
        return self._less_shown(data.decode(errors=self._errors))

    def _join(self, token_id: int, piece: str | bytes) -> str:
        if not piece:
            return ""
        if isinstance(piece, str):
            text = self.flush() + piece
        else:
            text, self._half = whole_characters(self._half + piece, self._errors)
            text = self._less_shown(text)
        if self._opens:
            self._opens = False
            text = self._vocabulary.opening(token_id, text)
        self._is_plain = not self._half
        return text

    def _less_shown(self, text: str) -> str:
        if not text:
            return ""
        shown, self._shown_before = REPLACEMENT * self._shown_before, 0
        return text.removeprefix(shown)


class WindowDetokenizer:
    """Decodes the last few tokens with and without the new one; for decoders of any kind.

    As text-generation-inference and vLLM do it: the tokens before are the context that the decoder
    may want, and the difference is the text of the new one.
    """

    def __init__(
        self, tokenizer: Tokenizer, context: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._tokens = list(context)
        self._num_shown = len(self._tokens)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        self._tokens.append(token_id)
        text = self._decode(self._tokens)
        is_half = text.endswith(REPLACEMENT)
        if is_half and len(self._tokens) - self._num_shown < _MOST_HELD:
            return ""
        return self._show(text)

    def flush(self) -> str:
        """Text that is still held back when the output ends, U+FFFD where it is no character."""
        return self._show(self._decode(self._tokens))

    def _show(self, text: str) -> str:
        context, new = self._tokens[: self._num_shown], self._tokens[self._num_shown :]
        before = self._decode(context)
        # Tokens that are skipped, or have no text, are no context for those after them.
        self._tokens = new if text != before else context
        self._num_shown = len(self._tokens)
        return text[_num_common(before, text) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=self._skips))


def _num_common(text: str, other: str) -> int:
    """Characters of the longest beginning that two texts have in common."""
    pairs = enumerate(zip(text, other, strict=False))
    shorter = min(len(text), len(other))
    return next((at for at, (left, right) in pairs if left != right), shorter)
