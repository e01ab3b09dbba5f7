"""Kubernetes quantities of memory and CPU, in the one spelling that Kubernetes itself gives them.

KubeRay writes a RayService back as it understands it: `1024Mi` comes back as `1Gi`. What is
rendered in the canonical spelling stays as it is.
"""

import re
from fractions import Fraction
from typing import Final

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
# A manifest's amounts of memory have fewer forms, as the CRD's rule says it in CEL.
_MEMORY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")


def parse_quantity(text: str) -> Fraction | None:
    """Return the value of a quantity such as 500m, 2Gi or 1e3; None: the text is not one."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    power = Fraction(10) ** int(match["exponent"] or 0)
    return Fraction(match["number"]) * _FACTORS[match["unit"] or ""] * power


def parse_memory(text: str) -> int:
    """Bytes of a quantity such as `2Gi`.

    Raises:
        ValueError: the text is not a quantity, or less than one byte.
    """
    value = parse_quantity(text) if _MEMORY.fullmatch(text) else None
    if value is None:
        raise ValueError(
            f"'{text}' is not an amount of memory; "
            "write a number and a unit out of Ki, Mi, Gi, Ti, k, M, G, T, such as 2Gi"
        )
    size = int(value)
    if size < 1:
        raise ValueError(f"'{text}' is less than one byte of memory; give at least 1")
    return size


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


def format_memory(size: int) -> str:
    """`size` bytes with the largest binary unit that keeps the number above one: 1.5 GiB."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
