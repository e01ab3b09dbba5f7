"""Rotary position embedding: the frequencies, and the table of cosines and sines.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021. Each kind of
scaling gives the same numbers as transformers (modeling_rope_utils.py) to the last bit, so the
order of the operations matters.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem_engine.api.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeDefault:
    """Wavelengths from 2π to 2π·theta, in geometric order."""

    theta: float

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of each pair, in radians: [head_dim / 2] float32."""
        return 1.0 / _wavelengths(self.theta, head_dim)

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeLinear:
    """Positions divided by `factor`: position interpolation (Chen et al., 2023)."""

    theta: float
    factor: float

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of each pair, in radians: [head_dim / 2] float32."""
        return 1.0 / _wavelengths(self.theta, head_dim) / self.factor

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeLlama3:
    """Llama 3.1: long waves stretched by `factor`, short ones kept, those between blended."""

    theta: float
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    """Tokens that the model saw before it was extended."""

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of each pair, in radians: [head_dim / 2] float32."""
        frequencies = 1.0 / _wavelengths(self.theta, head_dim)
        length = self.original_max_position_embeddings
        low, high = self.low_freq_factor, self.high_freq_factor
        waves = 2 * math.pi / frequencies  # tokens of one turn
        stretched = torch.where(waves > length / low, frequencies / self.factor, frequencies)
        share = (length / waves - low) / (high - low)
        blended = (1 - share) * stretched / self.factor + share * stretched
        is_between = ~(waves < length / high) & ~(waves > length / low)
        return torch.where(is_between, blended, stretched)

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeYarn:
    """YaRN (Peng et al., 2023): a ramp between kept and stretched waves, and sharper attention."""

    theta: float
    factor: float
    original_max_position_embeddings: int
    """Tokens that the model saw before it was extended."""
    attention_factor: float | None = None
    """Factor of cosines and sines; None: follows from the others."""
    beta_fast: float = 32.0
    """Turns within the original length from which a wave is kept."""
    beta_slow: float = 1.0
    """Turns within the original length up to which a wave is stretched by the whole factor."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """True if the ends of the ramp are rounded to whole pairs."""

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of each pair, in radians: [head_dim / 2] float32."""
        wavelengths = _wavelengths(self.theta, head_dim)
        low = self._pair_with_turns(self.beta_fast, head_dim)
        high = self._pair_with_turns(self.beta_slow, head_dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        if low == high:
            high += 0.001  # a ramp needs some length
        ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
        kept = 1 - ramp.clamp(0, 1)
        return 1.0 / (self.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._sharpness(self.mscale) / self._sharpness(self.mscale_all_dim)
        return self._sharpness(1.0)

    def _pair_with_turns(self, turns: float, head_dim: int) -> float:
        """Index of the pair that makes so many turns within the original length."""
        length = self.original_max_position_embeddings
        return (head_dim * math.log(length / (turns * 2 * math.pi))) / (2 * math.log(self.theta))

    def _sharpness(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeDynamic:
    """Dynamic NTK: the longer the sequence, the longer all waves, beyond what the model saw.

    The sequence is taken to be as long as the longest that is served, as in vLLM: keys in the cache
    were rotated once, and cannot follow a sequence that grows.
    """

    theta: float
    factor: float
    max_position_embeddings: int
    """Tokens that the model saw; up to them nothing is scaled."""
    num_positions: int = 0
    """Tokens of the longest sequence that is served."""

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of each pair, in radians: [head_dim / 2] float32."""
        # In float32, as in transformers.
        length = torch.tensor(max(self.num_positions, self.max_position_embeddings))
        growth = (self.factor * length / self.max_position_embeddings) - (self.factor - 1)
        theta = self.theta * growth ** (head_dim / (head_dim - 2))
        return 1.0 / _wavelengths(theta, head_dim)

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeLong:
    """LongRoPE (Ding et al., 2024): a factor of its own for each pair, found by search.

    There are two sets of factors. Which one is used goes by the longest sequence that is served, as
    in vLLM: keys in the cache were rotated once.
    """

    theta: float
    short_factor: tuple[float, ...]
    """Factors of the pairs where all sequences are as long as those that the model saw."""
    long_factor: tuple[float, ...]
    """Factors of the pairs where there are longer ones."""
    factor: float
    """Ratio of the extended to the original length; decides the amplitude."""
    original_max_position_embeddings: int
    """Tokens that the model saw before it was extended."""
    attention_factor: float | None = None
    """Factor of cosines and sines; None: follows from the others."""
    num_positions: int = 0
    """Tokens of the longest sequence that is served."""

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of each pair, in radians: [head_dim / 2] float32."""
        is_long = self.num_positions > self.original_max_position_embeddings
        factors = self.long_factor if is_long else self.short_factor
        scale = torch.tensor(factors, dtype=torch.float32)
        return 1.0 / (scale * _wavelengths(self.theta, head_dim))

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        length = self.original_max_position_embeddings
        return math.sqrt(1 + math.log(self.factor) / math.log(length))


Rope = RopeDefault | RopeLinear | RopeLlama3 | RopeYarn | RopeDynamic | RopeLong


def _wavelengths(theta: float | Tensor, head_dim: int) -> Tensor:
    """Tokens per radian of each pair."""
    wavelengths: Tensor = theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return wavelengths


class RopeTable:
    """Cosines and sines of every position.

    Raises:
        CheckpointError: The numbers of the rope do not come to angles.
    """

    def __init__(
        self,
        rope: Rope,
        *,
        head_dim: int,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        if isinstance(rope, RopeDynamic | RopeLong):
            rope = replace(rope, num_positions=num_positions)
        frequencies = _finite(rope, head_dim)
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = positions[:, None] * frequencies  # [positions, head_dim/2]
        # One half of each is kept, side by side: the other half of a head is the same.
        table = torch.cat((angles.cos(), angles.sin()), dim=1) * rope.amplitude
        self.table = table.to(dtype=dtype, device=device)
        """[positions, head_dim]: cosines of one half of a head, then sines."""


def _finite(rope: Rope, head_dim: int) -> Tensor:
    """The frequencies of a rope; raise CheckpointError where they, or its amplitude, are none."""
    try:
        frequencies, amplitude = rope.inverse_frequencies(head_dim), rope.amplitude
    except (ArithmeticError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the rope scaling cannot be computed ({error})") from error
    if not (bool(frequencies.isfinite().all()) and math.isfinite(amplitude)):
        raise CheckpointError(
            "the rope scaling does not come to finite angles; its numbers are off"
        )
    return frequencies
