"""Cases such as 16x256x64: how many requests at a time, and of which lengths. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.workload import Shape

_CASE: Final = re.compile(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Case:
    """Requests of one shape, so many at a time."""

    concurrency: int
    """Requests in flight; in an open loop the maximum, where 0 means unbounded."""
    shape: Shape

    def __str__(self) -> str:
        return f"{self.concurrency}x{self.shape.num_input}x{self.shape.num_output}"


def parse_case(text: str) -> Case:
    """The case that `text` writes as CONCURRENCYxINPUTxOUTPUT.

    Raises:
        WrongUsage: it is not written so, or a length is 0.
    """
    match = _CASE.fullmatch(text.strip().lower())
    if match is None:
        raise WrongUsage(
            f"'{text}' is not a case; write CONCURRENCYxINPUTxOUTPUT in tokens, such as 16x256x64."
        )
    concurrency, num_input, num_output = map(int, match.groups())
    if num_input == 0 or num_output == 0:
        raise WrongUsage(f"The case {text} has no tokens in or out; both must be at least 1.")
    return Case(concurrency, Shape(num_input, num_output))
