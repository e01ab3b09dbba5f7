"""Sizes that the library's linear layers can have: see units.h. Arithmetic only.

The one rule by which kernels pack a layer or leave it to torch, by which the engine's log says so,
and by which `tandem validate` says it before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HIDDEN: Final = "hidden_size"
HEADS: Final = "num_attention_heads * head_dim"
INTERMEDIATE: Final = "intermediate_size"
"""Sizes of a model that are inputs of linear layers: the last two are shared by ranks of tp."""

_FLOAT_UNIT: Final = 2
"""Inputs of a layer come in whole units of so many."""
_INT8_UNIT: Final = 4
"""The same in 8 bits."""


@dataclass(frozen=True, slots=True)
class InputWidth:
    """The inputs of some linear layers of a rank."""

    name: str
    """HIDDEN, HEADS or INTERMEDIATE."""
    inputs: int
    is_in_8_bits: bool


def is_packed(inputs: int, *, is_in_8_bits: bool) -> bool:
    """Return True if the library computes a linear layer with so many inputs."""
    return inputs % _unit(is_in_8_bits=is_in_8_bits) == 0


def unpacked_reason(widths: Iterable[InputWidth]) -> str | None:
    """Reason for which the library leaves layers, and so all steps, to torch; None: it does not.

    Args:
        widths: Of all linear layers of a rank.
    """
    unpacked = [
        width
        for width in dict.fromkeys(widths)
        if not is_packed(width.inputs, is_in_8_bits=width.is_in_8_bits)
    ]
    return " and ".join(map(_in_words, unpacked)) or None


def _in_words(width: InputWidth) -> str:
    kind = "in 8 bits" if width.is_in_8_bits else "in float"
    unit = _unit(is_in_8_bits=width.is_in_8_bits)
    return f"{width.name} is {width.inputs}, and {kind} it must be a multiple of {unit}"


def _unit(*, is_in_8_bits: bool) -> int:
    return _INT8_UNIT if is_in_8_bits else _FLOAT_UNIT
