"""JSON that is nested deeper than a parser follows; pure.

Kubernetes takes objects of ten thousand levels, and a user who may write one in a namespace may
write one: in the open parts of a volume, or in managedFields. A LIST has the objects of all
users, so its deepest levels are cut off, below every field that the operator reads.
"""

import re
from typing import Final

import msgspec

MAX_DEPTH: Final = 100
"""Levels that are kept; a pod has some twenty."""

# Compared with the interpreter's own limit on recursion, these leave room for what is done with a
# document once it has been read.
_AROUND: Final = 800
# All up to the next bracket, or to the end; one in a string is none. Nothing is given back once it
# has matched (`++`), or a tail of 40 digits would be parted in 2^40 ways.
_TO_BRACKET: Final = re.compile(
    rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?)*+([\[\]{}])?', re.DOTALL
)
_OPEN: Final = frozenset({b"[", b"{"})


def is_too_deep(text: bytes) -> bool:
    """Return True when `text` is JSON that a parser may give up on; nothing is built for it."""
    try:
        msgspec.json.decode(b"[" * _AROUND + text + b"]" * _AROUND, type=msgspec.Raw)
    except RecursionError:
        return True
    except msgspec.DecodeError:
        # Its reader reports what is wrong with it.
        return False
    return False


def truncate_depth(text: bytes) -> bytes:
    """Return the JSON in `text` with null in place of what lies deeper than MAX_DEPTH levels."""
    kept = []
    depth = begin = 0
    for match in _TO_BRACKET.finditer(text):
        if match[1] is None:
            break
        if match[1] in _OPEN:
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += [text[begin : match.start(1)], b"null"]
        else:
            if depth == MAX_DEPTH + 1:
                begin = match.end()
            depth -= 1
    return b"".join([*kept, text[begin:]])
