"""Objects that are nested deeper than a parser follows do not harm others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.k8s.json_depth import MAX_DEPTH, is_too_deep, truncate_depth

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{}é', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


def nested(depth: int, *, innermost: str = "1") -> str:
    return '{"a[": ' * depth + innermost + "}" * depth


def depth_of(value: Any) -> int:
    depth = 0
    while isinstance(value, dict):
        depth, value = depth + 1, value["a["]
    return depth


@given(value=_JSON)
def test_what_is_not_too_deep_stays_as_it_is(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()

    assert not is_too_deep(text)
    assert truncate_depth(text) == text


@pytest.mark.parametrize(
    "tail",
    [b"1" * 100_000, b'"' + b"a" * 100_000, b'"' + b'\\"' * 50_000, b'"' + b"\\" * 50_001],
    ids=["digits", "an open string", "an open string of quotes", "an open string of backslashes"],
)
def test_what_has_no_bracket_is_read_once(tail: bytes) -> None:
    assert truncate_depth(tail) == tail
    assert truncate_depth(b'{"a": [' + tail) == b'{"a": [' + tail


@given(before=_JSON, after=_JSON)
def test_what_stands_beside_it_stays(before: Any, after: Any) -> None:
    text = f'{{"items": [{json.dumps(before)}, {nested(5000)}, {json.dumps(after)}]}}'

    found = json.loads(truncate_depth(text.encode()))["items"]

    assert (found[0], found[2]) == (before, after)
    # The list and the mapping around it are two levels.
    assert depth_of(found[1]) == MAX_DEPTH - 2


@pytest.mark.parametrize("depth", [1000, 9999])
def test_deep_json_is_found_before_it_is_parsed(depth: int) -> None:
    with pytest.raises(RecursionError):
        json.loads(nested(depth))
    assert is_too_deep(nested(depth).encode())
    assert is_too_deep(b"[" * depth + b"]" * depth)


def test_what_is_no_json_is_left_to_its_reader() -> None:
    for text in (b"", b"<html>", b'{"a": ', b"\xff", b"1 2"):
        assert not is_too_deep(text)
