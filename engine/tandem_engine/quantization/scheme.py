"""Which linear layers of a checkpoint are in 8 bits, and in which format that is written."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class LinearKind(StrEnum):
    """How one linear layer is computed, under msModelSlim's names."""

    FLOAT = "FLOAT"
    """As it is."""

    DYNAMIC = "W8A8_DYNAMIC"
    """In 8 bits; inputs are quantised token by token."""

    STATIC = "W8A8"
    """In 8 bits; inputs are quantised by one scale and offset, which the checkpoint holds."""


class Format(StrEnum):
    """Where the integers come from, in words for a person."""

    FLOAT = "a float checkpoint"
    """Nothing is quantised."""

    AT_LOAD = "a float checkpoint, quantised as it is read"
    COMPRESSED_TENSORS = "a compressed-tensors checkpoint"
    MODELSLIM = "an msModelSlim checkpoint"


HEAD: Final = "lm_head"
"""Name of the output head."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a checkpoint, or a setting, says about its linear layers."""

    format: Format
    kind_of: Callable[[str], LinearKind]
    """By the layer's name, such as model.layers.0.mlp.up_proj; raises CheckpointError."""

    @property
    def is_quantized(self) -> bool:
        """Whether any layer may be in 8 bits."""
        return self.format is not Format.FLOAT


FLOAT_SCHEME: Final = Scheme(Format.FLOAT, lambda _: LinearKind.FLOAT)
AT_LOAD_SCHEME: Final = Scheme(
    Format.AT_LOAD,
    lambda name: LinearKind.FLOAT if name == HEAD else LinearKind.DYNAMIC,
)
"""All but the head, whose errors go straight into the choice of a token."""
