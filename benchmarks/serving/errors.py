"""Errors that end a benchmark early; their texts are for the user.

BenchmarkError        it could not be carried out (exit code 1)
└── WrongUsage        what was asked makes no sense (exit code 2)
"""

from typing import ClassVar


class BenchmarkError(Exception):
    """The benchmark could not be carried out; the text is one sentence for the user."""

    exit_code: ClassVar[int] = 1


class WrongUsage(BenchmarkError):
    """The command line asks for something that makes no sense."""

    exit_code: ClassVar[int] = 2
