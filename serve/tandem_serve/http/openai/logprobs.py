"""Log-probabilities in the two forms that OpenAI has for them."""

from collections.abc import Sequence
from typing import Any, Final

from tandem_engine.api.engine_client import TextCodec
from tandem_engine.api.output import TokenLogprob

LOWEST_LOGPROB: Final = -9999.0
"""OpenAI's value for 'never'; JSON has none for minus infinity."""


def chat_logprobs(codec: TextCodec, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The form of /v1/chat/completions."""
    content = [
        {
            **_chat_entry(codec, token.token_id, token.logprob),
            "top_logprobs": [_chat_entry(codec, *likely) for likely in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _chat_entry(codec: TextCodec, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": codec.token_text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(codec.token_bytes(token_id)),
    }


def completion_logprobs(
    codec: TextCodec, tokens: Sequence[TokenLogprob], offsets: Sequence[int]
) -> dict[str, Any]:
    """The form of /v1/completions; `offsets` says where in the text each token starts."""
    return {
        "tokens": [completion_token(codec, token.token_id) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [_top_by_text(codec, token) for token in tokens],
        "text_offset": list(offsets),
    }


def completion_token(codec: TextCodec, token_id: int) -> str:
    r"""A token as text; part of a character as OpenAI's completions write it: bytes:\xe2\x82."""
    data = codec.token_bytes(token_id)
    try:
        data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    return codec.token_text(token_id)


def _top_by_text(codec: TextCodec, token: TokenLogprob) -> dict[str, float]:
    by_text = {completion_token(codec, token_id): _finite(value) for token_id, value in token.top}
    # OpenAI always includes the token itself, even if it was not among the likeliest.
    by_text.setdefault(completion_token(codec, token.token_id), _finite(token.logprob))
    return by_text


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


_CONTINUATION_BITS: Final = 0b10
"""First bits of a byte that continues a character in UTF-8."""


class TextOffsets:
    """Offsets in the text, in characters, at which each token of one choice starts.

    A character may be spread over several tokens; those that continue it start where it does.
    """

    def __init__(self) -> None:
        self._num_begun = 0

    def advance(self, data: bytes) -> int:
        """The offset of the next token, which stands for the bytes `data`."""
        is_continued = data[:1] != b"" and _is_continuation(data[0])
        offset = max(0, self._num_begun - is_continued)
        self._num_begun += sum(not _is_continuation(byte) for byte in data)
        return offset


def _is_continuation(byte: int) -> bool:
    return byte >> 6 == _CONTINUATION_BITS
