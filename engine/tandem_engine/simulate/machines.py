"""Machines that exist as a price list: how long a step would take there.

The form is the scheduler's own step model with what that does not know: the floor
of a step that waits for the weights, noise, and slow steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from tandem_engine.api.step import Step
from tandem_engine.simulate.random_numbers import RandomNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Prices of a step, in seconds, and the size of the memory."""

    base_s: float
    """Of any step."""
    weights_s: float = 0.0
    """Reading of all weights: tokens below this price are free, as on a roofline."""
    token_s: float
    """Of each token."""
    attention_s: float
    """Of each pair of prompt tokens that attend to each other."""
    cache_s: float
    """Of each cached token that a decode row reads."""
    row_s: float
    """Of each row."""
    num_blocks: int
    """KV blocks of 128 tokens."""
    max_seq_len: int
    """Longest prompt and answer together; longer requests of a trace are cut."""
    source: str
    """Source of the prices."""

    def seconds(self, step: Step) -> float:
        """Seconds of the step without noise."""
        prompts = range(step.num_decodes, len(step.sequence_ids))
        tokens, starts = step.num_tokens, step.starts
        pairs = sum(tokens[i] * (starts[i] + tokens[i] / 2) for i in prompts)
        cached = sum(starts[: step.num_decodes])
        linear = max(self.weights_s, self.token_s * sum(tokens))
        rows = self.row_s * len(step.sequence_ids)
        return self.base_s + linear + self.attention_s * pairs + self.cache_s * cached + rows


MACHINES: Final[Mapping[str, Machine]] = MappingProxyType({
    "npu": Machine(
        base_s=25.8e-3,
        token_s=0.1317e-3,
        attention_s=4e-9,
        cache_s=1e-7,
        row_s=0.0864e-3,
        num_blocks=2400,
        max_seq_len=16384,
        source=(
            "MindIE's start values (prefill 25.8 ms + 0.1317 ms a token, decode 0.2181 ms a "
            "sequence); attention and cache of an 8 B model with 8 KV heads at 150 TFLOP/s and "
            "1.2 TB/s"
        ),
    ),
    "gpu": Machine(
        base_s=3e-3,
        weights_s=10e-3,
        token_s=0.085e-3,
        attention_s=3e-9,
        cache_s=0.8e-7,
        row_s=0.03e-3,
        num_blocks=3200,
        max_seq_len=16384,
        source="roofline of an 8 B model in 16 bits at 1.6 TB/s and 170 TFLOP/s, of A100's order",
    ),
    "cpu": Machine(
        base_s=5e-3,
        token_s=0.06e-3,
        attention_s=3e-8,
        cache_s=1e-6,
        row_s=0.9e-3,
        num_blocks=2000,
        max_seq_len=1024,
        source="tandem-tiny on 2 cores, of the order that benchmarks.serving measured",
    ),
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """By what the time of a step varies for reasons of its own."""

    spread: float = 0.05
    """Standard deviation of the logarithm."""
    outliers: float = 0.005
    """Share of steps that something else slows down."""
    slowdown: float = 4.0
    """Factor of those."""

    def factor(self, rng: RandomNumbers) -> float:
        """Return by what the time of the next step varies."""
        factor = rng.lognormvariate(0.0, self.spread)
        return factor * self.slowdown if rng.random() < self.outliers else factor


class StepTimer(Protocol):
    """Says how long steps take."""

    def seconds(self, step: Step) -> float:
        """Seconds of the next step."""
        ...


class NoisyMachine:
    """A machine whose steps vary; the same seed gives the same variations, step by step.

    Args:
        machine: The prices.
        noise: The variation.
        rng: Decides it; `random.Random(seed)` is one.
    """

    def __init__(self, machine: Machine, noise: Noise, rng: RandomNumbers) -> None:
        self.machine = machine
        """The prices, without noise."""
        self._noise = noise
        self._rng = rng

    def seconds(self, step: Step) -> float:
        """Seconds of the step."""
        return self.machine.seconds(step) * self._noise.factor(self._rng)
