"""Marks the texts that callers give a chat template, so that its own text can be told from theirs.

A template is any program: it trims, splits, replaces, joins, and writes JSON. So a mark is a
character within the text, where a special token's spelling begins, and goes wherever that text
goes. A subclass of `str` that remembers whose characters it has would lose it in every filter.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

MARK: Final = "\U00012470"
"""Stands behind a caller's character with which a special token might begin. It is printable, so
that `repr` keeps it, and neither a letter nor a space; who writes cuneiform has it quoted."""
QUOTE: Final = "\U00012471"
"""Stands before a caller's own MARK or QUOTE."""

_QUOTED: Final = re.compile(f"[{MARK}{QUOTE}]")
_MARKS: Final = re.compile(f"{QUOTE}([{MARK}{QUOTE}])|{MARK}")
_SHORTEST_READ: Final = 2


class CallerText:
    """Marks what a caller wrote.

    Args:
        spellings: Texts of the special tokens.
        constants: Texts in the template's expressions. It may look for them in a message, so they
            stay as they are, but for the beginnings of special tokens.
    """

    def __init__(self, spellings: Collection[str], constants: Collection[str]) -> None:
        self._constants = frozenset(constants)
        self._all = "\0".join(spellings)
        self._longest = max(map(len, spellings), default=0)
        self._ends = {text[start:] for text in spellings for start in range(1, len(text))}
        firsts = {text[0] for text in spellings}
        kept = _kept(firsts, spellings, constants)
        self._begins = re.compile(_pattern(firsts, kept))

    def mark_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with all texts marked but the roles, by which templates write tokens."""
        return [
            {name: value if name == "role" else self.mark(value) for name, value in message.items()}
            for message in messages
        ]

    def mark_values(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Variables with all texts in their values marked, and their own names as they are."""
        return {name: self.mark(value) for name, value in variables.items()}

    def mark(self, value: Any) -> Any:
        """A value of JSON with all of its texts marked."""
        match value:
            case str():
                return self._marked_end(self._marked_begins(value))
            case list():
                return [self.mark(item) for item in value]
            case dict():
                return {self._marked_begins(name): self.mark(item) for name, item in value.items()}
            case _:
                return value

    def _marked_begins(self, text: str) -> str:
        return self._begins.sub(rf"\g<0>{MARK}", _QUOTED.sub(rf"{QUOTE}\g<0>", text))

    def _marked_end(self, text: str) -> str:
        """Mark a text that goes on, or ends, a token which the template or another text begins."""
        body = text.lstrip()
        if not body or text in self._constants or not self._goes_on(body):
            return text
        return text[: len(text) - len(body)] + MARK + body

    def _goes_on(self, body: str) -> bool:
        head = body[: self._longest]
        if any(head[:length] in self._ends for length in range(1, len(head) + 1)):
            return True
        return len(body) <= self._longest and body.rstrip() in self._all


def unmarked(text: str) -> str:
    """The text without marks."""
    return _MARKS.sub(lambda match: match[1] or "", text)


def _kept(
    firsts: Collection[str], spellings: Collection[str], constants: Collection[str]
) -> set[str]:
    """Texts that a template may look for, and that begin no special token: `</think>`."""
    tails = {text[at:] for text in constants for at, char in enumerate(text) if char in firsts}
    return {
        tail
        for tail in tails
        if len(tail) >= _SHORTEST_READ
        and not any(tail.startswith(text) or text.startswith(tail) for text in spellings)
    }


def _pattern(firsts: Collection[str], kept: Collection[str]) -> str:
    if not firsts:
        return "(?!)"
    first = f"[{''.join(map(re.escape, sorted(firsts)))}]"
    return f"(?!{'|'.join(map(re.escape, sorted(kept)))}){first}" if kept else first
