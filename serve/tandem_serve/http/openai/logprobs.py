"""Log-probabilities in the two forms that OpenAI has for them."""

from collections.abc import Sequence
from typing import Any, Final

from tandem_engine.api.engine_client import TextCodec
from tandem_engine.api.output import PromptLogprobs, TokenLogprob

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


def prompt_logprobs(codec: TextCodec, prompt: PromptLogprobs | None, num_top: int) -> list[Any]:
    """vLLM's form: for each token of the prompt its own and the likeliest; none for the first.

    Args:
        codec: The tokenizer.
        prompt: The log-probabilities of all tokens but the first; None: there are no others.
        num_top: Likeliest tokens to show at each position.
    """
    if prompt is None:
        return [None]
    return [None, *(_by_id(codec, prompt, at, num_top) for at in range(len(prompt)))]


def _by_id(codec: TextCodec, prompt: PromptLogprobs, at: int, num_top: int) -> dict[str, Any]:
    own = (prompt.token_ids[at], prompt.logprobs[at], prompt.ranks[at])
    # The rank of one of the likeliest is its place among them.
    likeliest = [(*pair, rank) for rank, pair in enumerate(prompt.top(at)[:num_top], 1)]
    return {
        str(token_id): {
            "logprob": _finite(logprob),
            "rank": rank,
            "decoded_token": codec.token_text(token_id),
        }
        for token_id, logprob, rank in (own, *likeliest)
    }


def echo_logprobs(
    codec: TextCodec,
    first: int,
    prompt: PromptLogprobs | None,
    *,
    num_top: int,
    text: str,
) -> dict[str, list[Any]]:
    """The form of /v1/completions for the tokens of a prompt; of the first there are none.

    Args:
        codec: The tokenizer.
        first: The prompt's first token.
        prompt: The log-probabilities of the others; None: there are no others.
        num_top: Likeliest tokens to show at each position.
        text: The prompt as the answer has it.
    """
    tokens = [] if prompt is None else _tokens_of(prompt, num_top)
    offsets = EchoOffsets(codec, text).of([first, *(token.token_id for token in tokens)])
    form = completion_logprobs(codec, tokens, offsets)
    return {
        "tokens": [completion_token(codec, first), *form["tokens"]],
        "token_logprobs": [None, *form["token_logprobs"]],
        "top_logprobs": [None, *form["top_logprobs"]],
        "text_offset": form["text_offset"],
    }


def _tokens_of(prompt: PromptLogprobs, num_top: int) -> list[TokenLogprob]:
    return [
        TokenLogprob(token_id, logprob, prompt.top(at)[:num_top])
        for at, (token_id, logprob) in enumerate(
            zip(prompt.token_ids, prompt.logprobs, strict=True)
        )
    ]


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

    def __init__(self, num_before: int = 0) -> None:
        self._num_begun = num_before

    def advance(self, data: bytes) -> int:
        """The offset of the next token, which stands for the bytes `data`."""
        is_continued = data[:1] != b"" and _is_continuation(data[0])
        offset = max(0, self._num_begun - is_continued)
        self._num_begun += sum(not _is_continuation(byte) for byte in data)
        return offset


class EchoOffsets:
    """Offsets of a prompt's tokens in its text.

    A special token that the text does not show starts where the next one does.
    """

    def __init__(self, codec: TextCodec, text: str) -> None:
        self._codec = codec
        self._text = text.encode()
        self._are_special: dict[int, bool] = {}

    def of(self, token_ids: Sequence[int]) -> list[int]:
        """An offset for each token."""
        offsets, starts, at = TextOffsets(), list[int](), 0
        for token_id in token_ids:
            data = self._codec.token_bytes(token_id)
            if self._is_special(token_id) and not self._text.startswith(data, at):
                data = b""
            at += len(data)
            starts.append(offsets.advance(data))
        return starts

    def _is_special(self, token_id: int) -> bool:
        if token_id not in self._are_special:
            self._are_special[token_id] = not self._codec.decode([token_id])
        return self._are_special[token_id]


def _is_continuation(byte: int) -> bool:
    return byte >> 6 == _CONTINUATION_BITS
