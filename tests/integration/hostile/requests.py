"""Requests of every kind but the expected, made by hypothesis from those that clients send."""

import json
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

MODEL: Final = "tandem-tiny"
PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")

_MESSAGES: Final = [{"role": "user", "content": "47+38=?"}]
_REQUIRED: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": _MESSAGES, "max_tokens": 2},
    "/v1/completions": {"model": MODEL, "prompt": "47+38=", "max_tokens": 2},
    "/tokenize": {"prompt": "47+38="},
    "/detokenize": {"tokens": [1, 2, 3]},
}
_FIELDS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "max_tokens": st.integers(1, 4),
    "max_completion_tokens": st.integers(1, 4),
    "min_tokens": st.integers(0, 4),
    "n": st.integers(1, 4),
    "best_of": st.integers(1, 4),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 300),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.1, 3),
    "logit_bias": st.dictionaries(st.integers(0, 250).map(str), st.floats(-100, 100), max_size=5),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.lists(st.text(min_size=1, max_size=4), max_size=4),
    "stop_token_ids": st.lists(st.integers(0, 300), max_size=4),
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "logprobs": st.one_of(st.booleans(), st.integers(0, 20)),
    "top_logprobs": st.integers(0, 20),
    "use_beam_search": st.booleans(),
    "length_penalty": st.floats(-2, 2),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "echo": st.booleans(),
    "priority": st.integers(1, 5),
    "cache_salt": st.text(max_size=8),
    "user": st.text(max_size=8),
    "prompt": st.one_of(
        st.text(max_size=20),
        st.lists(st.integers(0, 400), max_size=8),
        st.lists(st.text(max_size=5), max_size=3),
        st.lists(st.lists(st.integers(0, 250), max_size=4), max_size=3),
    ),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "assistant", "developer", "tool"])},
            optional={"content": st.text(max_size=20), "name": st.text(max_size=5)},
        ),
        max_size=4,
    ),
    "tokens": st.lists(st.integers(-5, 400), max_size=8),
    "tools": st.just([{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    "response_format": st.just({"type": "json_object"}),
    "chat_template_kwargs": st.dictionaries(st.text(max_size=5), st.booleans(), max_size=3),
    "add_generation_prompt": st.booleans(),
}
_STRANGE: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 2**31, 2**63, -(2**63) - 1, 10**40, 1e308, -1e308, 5e-324, 0.5]),
    st.sampled_from(["", "\x00", "\u202e", "a" * 300, "é" * 50, "\U0001f600", "null", "1"]),
    st.text(max_size=20),
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=3)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
        ),
        max_leaves=12,
    ),
)
_DAMAGES: Final = (
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"[" * 500,
    b'{"a":' * 300,
    b"\xff\xfe{}",
    b'{"model": "\\ud800"}',
    b'{"prompt": NaN}',
    b'{"prompt": 1e999}',
    b'{"model": 1, "model": 2}',
    b"{" + b" " * 5000,
)
_HEADERS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"content-type": "text/plain"},
    {"content-type": "application/json; charset=utf-16"},
    {"content-encoding": "gzip"},
    {"x-request-id": "x" * 500},
    {"authorization": "Bearer nothing"},
    {"expect": "100-continue"},
    {"accept": "text/html"},
)


@dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request to an endpoint: sound, with some wrong values, or damaged as a whole."""
    path = draw(st.sampled_from(PATHS))
    body = draw(st.one_of(_bodies(path), _bodies(path), _bodies(path), _damaged(path)))
    headers = draw(st.sampled_from(_HEADERS[:1] * 2 * len(_HEADERS) + _HEADERS))
    method = draw(st.sampled_from(["POST"] * 12 + ["GET", "PUT", "DELETE"]))
    suffix = draw(st.sampled_from([""] * 12 + ["/", "?a=b", "/%00", "//x"]))
    return Request(method, path + suffix, dict(headers), body)


@st.composite
def _bodies(draw: st.DrawFn, path: str) -> bytes:
    body = dict(_REQUIRED[path])
    for name in draw(st.lists(st.sampled_from(sorted(_FIELDS)), max_size=5, unique=True)):
        body[name] = draw(_FIELDS[name] if draw(st.integers(0, 3)) else _STRANGE)
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.text(max_size=10))] = draw(_STRANGE)
    if draw(st.integers(0, 9)) == 0:
        body.pop(draw(st.sampled_from(sorted(body))))
    return json.dumps(body).encode()


@st.composite
def _damaged(draw: st.DrawFn, path: str) -> bytes:
    if draw(st.booleans()):
        return draw(st.sampled_from(_DAMAGES))
    text = draw(_bodies(path))
    at = draw(st.integers(0, len(text)))
    return draw(st.sampled_from([text[:at], text[:at] + b"\x00" + text[at:], text + text]))
