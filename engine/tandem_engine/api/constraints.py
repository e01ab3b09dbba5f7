"""Constraints on one value, declared as data: pydantic calls them, the CRD holds them in CEL.

Regular expressions are written in the syntax that Python and RE2 have in common, and match the
whole text.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """A format of a text."""

    problem: str
    """Message for a text of another format, behind the text itself; each %s is the text again."""

    matches: tuple[str, ...] = ()
    """Regular expressions, all of which the text has to match."""

    excludes: tuple[str, ...] = ()
    """Regular expressions, none of which the text may match."""

    prefix: str = ""
    """Beginning of the texts that it is about; others are allowed."""

    exceptions: tuple[str, ...] = ()
    """Texts that are allowed all the same."""

    longest: int | None = None
    """Characters of the text at most; in the CRD they keep the cost of a rule low."""

    def __call__(self, value: str) -> str:
        """Return `value`.

        Raises:
            ValueError: it has another format.
        """
        if problem := self.problem_with(value):
            raise ValueError(problem)
        return value

    def problem_with(self, value: str) -> str | None:
        """Return the sentence about a text of another format."""
        if self.longest is not None and len(value) > self.longest:
            return f"'{value[:32]}…' has {len(value)} characters; use up to {self.longest}"
        return None if self.allows(value) else self.sentence(value)

    def allows(self, value: str) -> bool:
        """Return True when `value` has the format, whatever its length."""
        if value in self.exceptions or not value.startswith(self.prefix):
            return True
        return all(re.fullmatch(pattern, value) for pattern in self.matches) and not any(
            re.fullmatch(pattern, value) for pattern in self.excludes
        )

    def sentence(self, value: str) -> str:
        """Return the sentence about `value`."""
        return f"'{value}' {self.problem.replace('%s', value)}"


@dataclass(frozen=True, slots=True)
class MappingFormat:
    """Formats of the keys and of the values of a mapping."""

    keys: TextFormat
    values: TextFormat

    def __call__(self, mapping: dict[str, str]) -> dict[str, str]:
        """Return `mapping`.

        Raises:
            ValueError: a key or a value has another format.
        """
        for key, value in mapping.items():
            if problem := self.keys.problem_with(key) or self.values.problem_with(value):
                raise ValueError(problem)
        return mapping


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """A whole number of tiles."""

    tile: int

    def __call__(self, value: int) -> int:
        """Return `value`.

        Raises:
            ValueError: it is not a multiple.
        """
        if value % self.tile:
            lower = value // self.tile * self.tile
            raise ValueError(
                f"{value} is not a multiple of {self.tile}; use {lower} or {lower + self.tile}"
            )
        return value


@dataclass(frozen=True, slots=True)
class NotEqual:
    """A number that is excluded from its range."""

    excluded: int
    problem: str

    def __call__(self, value: int) -> int:
        """Return `value`.

        Raises:
            ValueError: it is the excluded number.
        """
        if value == self.excluded:
            raise ValueError(self.problem)
        return value
