"""Kubernetes quantities of memory and CPU, in the one spelling that Kubernetes itself gives them.

KubeRay writes a RayService back as it understands it: `1024Mi` comes back as `1Gi`. What is
rendered in the canonical spelling stays as it is.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Final

from pydantic import AfterValidator

from tandem_engine.api.constraints import TextFormat

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")
_FACTORS: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate(_DECIMAL)},
    **{unit: Fraction(1024**power) for power, unit in enumerate(_BINARY)},
}
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+))"
    r"((?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)
# A manifest's amounts of memory have fewer forms.
_MEMORY: Final = TextFormat(
    matches=(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?",),
    problem="is not an amount of memory; "
    "write a number and a unit out of Ki, Mi, Gi, Ti, k, M, G, T, such as 2Gi",
    longest=32,
)


def parse_quantity(text: str) -> Fraction | None:
    """Return the value of a quantity such as 500m, 2Gi or 1e3; None: the text is not one."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    power = Fraction(10) ** int(match["exponent"] or 0)
    return Fraction(match["number"]) * _FACTORS[match["unit"] or ""] * power


@dataclass(frozen=True, slots=True)
class LeastQuantity:
    """A lower bound of a quantity, which is a constraint on a text."""

    bound: str
    problem: str
    """Message for a smaller quantity, behind itself."""

    def __call__(self, value: str) -> str:
        """Return `value`.

        Raises:
            ValueError: it is smaller.
        """
        quantity, bound = parse_quantity(value), parse_quantity(self.bound)
        if quantity is not None and bound is not None and quantity < bound:
            raise ValueError(f"'{value}' {self.problem}")
        return value


_ONE_BYTE: Final = LeastQuantity("1", "is less than one byte of memory; give at least 1")

Memory = Annotated[str, AfterValidator(_MEMORY), AfterValidator(_ONE_BYTE)]
"""An amount of memory in a manifest, such as 2Gi."""


def parse_memory(text: str) -> int:
    """Bytes of a quantity such as `2Gi`.

    Raises:
        ValueError: the text is not an amount of memory, or less than one byte.
    """
    value = parse_quantity(_ONE_BYTE(_MEMORY(text)))
    if value is None:
        raise ValueError(_MEMORY.sentence(text))
    return int(value)


def parse_cpu(text: str) -> int:
    """Thousandths of a CPU in a quantity such as 500m or 2.

    Raises:
        ValueError: the text is not a quantity, or less than a thousandth.
    """
    value = parse_quantity(text)
    if value is None or value < Fraction(1, 1000):
        raise ValueError(f"'{text}' is not an amount of CPU; write one such as 500m or 2")
    return int(value * 1000)


def format_cpu(thousandths: int) -> str:
    """Thousandths of a CPU as a quantity: 2, or 500m."""
    whole, rest = divmod(thousandths, 1000)
    return f"{thousandths}m" if rest else str(whole)


def format_bytes(size: int) -> str:
    """`size` bytes (1 or more) as a quantity with the largest unit that divides it: 1536Mi."""
    units, base = (_BINARY, 1024) if size % 1024 == 0 else (_DECIMAL, 1000)
    power = 0
    while size % base == 0 and power < len(units) - 1:
        size //= base
        power += 1
    return f"{size}{units[power]}"
