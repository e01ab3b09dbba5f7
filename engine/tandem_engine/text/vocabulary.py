"""The text of each token of a vocabulary, or bytes that are no text by themselves.

Most decoders of tokenizer.json look at one token at a time, but for the beginning of a text and for
characters that are spread over tokens. Of these a table is kept, so that decoding is a look-up:

- byte-level BPE (GPT-2, Qwen, Llama 3): a token is bytes, whatever characters they make;
- byte fallback (Llama 2, Mistral, Gemma): a token is a text, or one byte, written <0xE2>;
- Metaspace (T5, XLM-R): a token is a text.
"""

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer

REPLACEMENT: Final = "\ufffd"
_SPACE_SYMBOL: Final = "\u2581"
_BYTE_TOKEN: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
_LONGEST_CHARACTER: Final = 4
"""Bytes of a character in UTF-8, at most."""

_MAX_TAIL_TOKENS: Final = 1024
"""Tokens at the end of a prompt, which may all be special: a longer one counts as having text."""

EACH_BYTE: Final = "tandem-each-byte"
"""Error handler that shows each byte that is no character as U+FFFD, as byte fallback does."""


def _show_each_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _show_each_byte)


@dataclass(frozen=True, slots=True)
class DecoderKind:
    """A decoder's treatment of text that spans tokens."""

    errors: str
    """Handler of bytes that are no character: a name of Python's error handlers."""
    is_byte_level: bool = False
    has_byte_tokens: bool = False
    strips: bool = False
    """True if one space at the beginning of the whole text is dropped."""


def decoder_kind(tokenizer: Tokenizer) -> DecoderKind | None:
    """The kind of a tokenizer's decoder; None: it has to see tokens beside each other."""
    if tokenizer.decoder is None:
        return None
    state = json.loads(tokenizer.decoder.__getstate__())
    parts = state["decoders"] if state["type"] == "Sequence" else [state]
    match [part["type"] for part in parts]:
        case ["ByteLevel"]:
            return DecoderKind("replace", is_byte_level=True)
        case ["Metaspace"]:
            return DecoderKind("replace")
    return _fallback_kind(parts)


def _fallback_kind(parts: Sequence[Mapping[str, Any]]) -> DecoderKind | None:
    """Byte fallback as tokenizer.json has it: Replace, ByteFallback, Fuse and, or not, Strip."""
    names = [part["type"] for part in parts]
    strips = names[-2:] == ["Fuse", "Strip"]
    if strips and {"content": " ", "start": 1, "stop": 0}.items() <= parts[-1].items():
        names.pop()
    patterns = [part["pattern"] for part in parts if part["type"] == "Replace"]
    if names != ["Replace", "ByteFallback", "Fuse"] or patterns != [{"String": _SPACE_SYMBOL}]:
        return None
    return DecoderKind(EACH_BYTE, has_byte_tokens=True, strips=strips)


class Vocabulary:
    """The tokens of a tokenizer whose decoder is of a known kind."""

    def __init__(self, tokenizer: Tokenizer, kind: DecoderKind) -> None:
        self.kind = kind
        self.all = Pieces(self)
        """The text or bytes of each token."""
        self.without_special = Pieces(self, _special_ids(tokenizer))
        """The same, with nothing for special tokens."""
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder
        self._byte_of = byte_of_symbol()

    def piece(self, token_id: int) -> str | bytes:
        """Text of a token within a longer text; bytes where these are no text by themselves."""
        symbol = self._tokenizer.id_to_token(token_id)
        if not symbol:  # the decoder skips ids that no token has
            return ""
        if self.kind.is_byte_level:
            return _as_text(self._bytes_of(symbol))
        byte = _BYTE_TOKEN.fullmatch(symbol) if self.kind.has_byte_tokens else None
        if byte is not None:
            return _as_text(bytes.fromhex(byte[1]))
        # After another token, since decoders drop a space where a text begins.
        return str(self._decoder.decode(["x", symbol]))[1:]

    def opening(self, token_id: int, text: str) -> str:
        """The text of a token that is the first of all; elsewhere it would be `text`."""
        if self.kind.has_byte_tokens or self.kind.is_byte_level:
            return text.removeprefix(" ") if self.kind.strips else text
        return str(self._decoder.decode([self._tokenizer.id_to_token(token_id)]))

    def token_bytes(self, token_id: int) -> bytes:
        """A token as bytes, special ones included."""
        piece = self.all[token_id]
        return piece.encode() if isinstance(piece, str) else piece

    def token_text(self, token_id: int) -> str:
        """A token as text, special ones included; invalid UTF-8 becomes U+FFFD."""
        piece = self.all[token_id]
        return piece if isinstance(piece, str) else piece.decode(errors="replace")

    def _bytes_of(self, symbol: str) -> bytes:
        if all(char in self._byte_of for char in symbol):
            return bytes(self._byte_of[char] for char in symbol)
        return symbol.encode()  # an added token with other characters in it


class Pieces(dict[int, str | bytes]):
    """Token id → its text or bytes; filled on first use.

    Args:
        vocabulary: The tokenizer's vocabulary.
        skipped: Tokens that stand for nothing here.
    """

    def __init__(self, vocabulary: Vocabulary, skipped: frozenset[int] = frozenset()) -> None:
        super().__init__(dict.fromkeys(skipped, ""))
        self._vocabulary = vocabulary

    def __missing__(self, token_id: int) -> str | bytes:
        """Look a token up for the first time."""
        piece = self[token_id] = self._vocabulary.piece(token_id)
        return piece


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """The end of a prompt, as far as the text that continues it depends on it."""

    is_empty: bool
    """True if it has no text at all, so that the first token of the output begins the text."""
    half_character: bytes
    """The bytes with which a character begins that the prompt does not end."""


def prompt_end(pieces: Pieces, prompt: Sequence[int]) -> PromptEnd:
    """Read the last tokens of a prompt, as many as may hold a part of a character."""
    tail = b""
    is_empty = len(prompt) <= _MAX_TAIL_TOKENS
    for token_id in reversed(prompt[-_MAX_TAIL_TOKENS:]):
        piece = pieces[token_id]
        if not piece:
            continue
        is_empty = False
        if isinstance(piece, str) or len(tail) >= _LONGEST_CHARACTER:
            break
        tail = piece + tail
    _, half_character = whole_characters(tail, "replace")
    return PromptEnd(is_empty=is_empty, half_character=half_character)


def whole_characters(data: bytes, errors: str) -> tuple[str, bytes]:
    """The text of `data`, and those bytes at its end with which another character begins."""
    text, used = codecs.utf_8_decode(data, errors, False)  # noqa: FBT003 - it has no names
    return text, data[used:]


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _as_text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def byte_of_symbol() -> dict[str, int]:
    """The printable symbols by which byte-level BPE (GPT-2) writes the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted
