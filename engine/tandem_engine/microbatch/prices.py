"""What a step costs, as rank 0 has measured it and tells the others; so all cut alike."""

import struct
from dataclasses import astuple, dataclass
from typing import Final, Self

_FORM: Final = struct.Struct("<7d3q2?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPrices:
    """Prices of computation and communication on one rank; seconds are of whole steps.

    Computation of rows is base + token · tokens + pair · Σ chunk · (start + chunk / 2)
    + context · Σ contexts of decode rows; it is shared out evenly over the stages of a step.
    """

    base_s: float
    """Of any pass over the model, however few rows it has: weights are read twice by two halves."""
    token_s: float
    pair_s: float
    """Of each pair of prompt tokens that attend to each other."""
    context_s: float
    """Of each cached token that a decode row reads."""
    latency_s: float
    """Of one collective of next to nothing."""
    byte_s: float
    """Of each byte of a collective."""
    margin: float
    """The least share of a step's time that a cut must be predicted to save."""
    num_collectives: int
    """Of a step."""
    token_bytes: int
    """Bytes of one token in a collective."""
    tile: int
    """Tokens at a multiple of which a prompt chunk is parted."""
    prefills: bool
    """True where steps with prefill are cut: their gate is open."""
    decodes: bool
    """True where steps without prefill are cut."""

    def encode(self) -> bytes:
        """Return the prices for a message, to the last bit."""
        return _FORM.pack(*astuple(self))

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """Return the prices of a message.

        Raises:
            ValueError: It is none.
        """
        if len(message) != _FORM.size:
            raise ValueError(
                f"prices have {_FORM.size} bytes, and a message has {len(message)}; this is a bug"
            )
        values = _FORM.unpack(message)
        return cls(**dict(zip(cls.__slots__, values, strict=True)))

    def collective_s(self, num_tokens: int) -> float:
        """Return the seconds of one collective over the hidden states of so many tokens."""
        return self.latency_s + self.byte_s * self.token_bytes * num_tokens
