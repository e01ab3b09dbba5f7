"""Errors that end a benchmark early; their texts are for the user.

BenchmarkError        it failed (exit code 1)
└── WrongUsage        invalid options (exit code 2)
"""

from typing import ClassVar


class BenchmarkError(Exception):
    """The benchmark failed; the text is one sentence for the user."""

    exit_code: ClassVar[int] = 1


class WrongUsage(BenchmarkError):
    """The options are invalid."""

    exit_code: ClassVar[int] = 2
