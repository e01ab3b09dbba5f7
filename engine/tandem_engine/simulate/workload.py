"""Requests by their lengths, and when they arrive."""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The lengths of a request, in tokens."""

    num_input: int
    num_output: int

    @property
    def num_tokens(self) -> int:
        """Prompt and answer together."""
        return self.num_input + self.num_output


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is to be sent at a certain time."""

    due_s: float
    """Seconds after the beginning of the load."""
    shape: Shape


def speed_up(arrivals: Sequence[Arrival], speed: float) -> list[Arrival]:
    """Return the same requests, `speed` times as fast."""
    return [replace(arrival, due_s=arrival.due_s / speed) for arrival in arrivals]


def clip(arrivals: Sequence[Arrival], max_tokens: int) -> tuple[list[Arrival], int]:
    """Cut requests to `max_tokens`, prompt and answer together; also return how many were cut.

    An answer keeps at most half of it, the prompt what the answer leaves.
    """
    cut = [replace(arrival, shape=clip_shape(arrival.shape, max_tokens)) for arrival in arrivals]
    return cut, sum(was.shape != now.shape for was, now in zip(arrivals, cut, strict=True))


def clip_shape(shape: Shape, max_tokens: int) -> Shape:
    """Cut one request, as `clip` does."""
    if shape.num_tokens <= max_tokens:
        return shape
    num_output = min(shape.num_output, max_tokens // 2)
    return Shape(min(shape.num_input, max_tokens - num_output), num_output)
