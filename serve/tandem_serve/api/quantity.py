"""Kubernetes quantities of memory, such as 512Mi or 2Gi, as bytes."""

import re
from fractions import Fraction
from typing import Final

_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_QUANTITY: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>Ki|Mi|Gi|Ti|k|M|G|T)?")


def parse_memory(text: str) -> int:
    """Bytes of a quantity such as `2Gi`.

    Raises:
        ValueError: the text is not a quantity, or less than one byte.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"'{text}' is not an amount of memory; "
            "write a number and a unit out of Ki, Mi, Gi, Ti, k, M, G, T, such as 2Gi"
        )
    size = int(Fraction(match["number"]) * _UNITS[match["unit"] or ""])
    if size < 1:
        raise ValueError(f"'{text}' is less than one byte of memory; give at least 1")
    return size


def format_memory(size: int) -> str:
    """`size` bytes with the largest binary unit that keeps the number above one: 1.5 GiB."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
