"""The linear layers of a checkpoint that are in 8 bits, and the format that says so."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class LinearKind(StrEnum):
    """Arithmetic of one linear layer, under msModelSlim's names."""

    FLOAT = "FLOAT"
    """In float."""

    DYNAMIC = "W8A8_DYNAMIC"
    """In 8 bits; inputs are quantised token by token."""

    STATIC = "W8A8"
    """In 8 bits; inputs are quantised by one scale and offset, which the checkpoint holds."""


class Format(StrEnum):
    """Source of the integers, for messages."""

    FLOAT = "a float checkpoint"
    """Nothing is quantised."""

    AT_LOAD = "a float checkpoint, quantised as it is read"
    COMPRESSED_TENSORS = "a compressed-tensors checkpoint"
    MODELSLIM = "an msModelSlim checkpoint"


HEAD: Final = "lm_head"
"""Name of the output head."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Kinds of the linear layers, from a checkpoint or a setting."""

    format: Format
    kind_of: Callable[[str], LinearKind]
    """By the layer's name, such as model.layers.0.mlp.up_proj; raises CheckpointError."""

    @property
    def is_quantized(self) -> bool:
        """True if any layer may be in 8 bits."""
        return self.format is not Format.FLOAT


FLOAT_SCHEME: Final = Scheme(Format.FLOAT, lambda _: LinearKind.FLOAT)
AT_LOAD_SCHEME: Final = Scheme(
    Format.AT_LOAD,
    lambda name: LinearKind.FLOAT if name == HEAD else LinearKind.DYNAMIC,
)
"""All but the head, whose errors would directly change the sampled tokens."""
