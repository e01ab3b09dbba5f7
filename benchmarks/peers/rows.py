"""Rows of the comparison: a case, greedy or drawn. Pure."""

from dataclasses import dataclass
from typing import Final

from benchmarks.serving.case import Case, parse_case
from benchmarks.serving.errors import WrongUsage

_SAMPLED: Final = "sampled"


@dataclass(frozen=True, slots=True)
class PeerRow(Case):
    """So many sequences at once, of which lengths, and how their tokens are chosen."""

    is_sampled: bool = False
    """With temperature 1 and top_p 0.95; else the likeliest token is taken."""

    def __str__(self) -> str:
        # By name: a dataclass with slots is a new class, which super() without arguments is not of.
        return Case.__str__(self) + (f":{_SAMPLED}" if self.is_sampled else "")


def parse_row(text: str) -> PeerRow:
    """The row that `text` writes as SEQUENCESxPROMPTxOUTPUT, perhaps with :sampled behind it.

    Raises:
        WrongUsage: it is not written so, or a length is 0.
    """
    lengths, colon, how = text.strip().partition(":")
    if colon and how != _SAMPLED:
        raise WrongUsage(f"'{text}' ends with ':{how}'; write :{_SAMPLED}, or nothing for greedy.")
    case = parse_case(lengths)
    return PeerRow(case.concurrency, case.shape, is_sampled=bool(colon))
