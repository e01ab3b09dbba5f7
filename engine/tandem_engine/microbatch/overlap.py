"""What a step was measured to take on rank 0, and what of its communication was hidden."""

from dataclasses import dataclass
from math import fsum
from typing import Self

from tandem_engine.microbatch.rows import StepRows


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOverlap:
    """Seconds of one step on one rank."""

    compute_s: float
    communication_s: float
    """From the begin of each collective to its end."""
    exposed_s: float
    """Of these, the seconds in which nothing was computed."""

    @property
    def hidden_s(self) -> float:
        """Seconds of communication under which a half computed."""
        return max(0.0, self.communication_s - self.exposed_s)

    @property
    def hideable_s(self) -> float:
        """Seconds that could have been hidden at best."""
        return min(self.communication_s, self.compute_s)

    @property
    def seconds(self) -> float:
        """The time of the step."""
        return self.compute_s + self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a step's times depend on."""

    num_tokens: int
    num_pairs: float
    """Pairs of prompt tokens that attend to each other."""
    num_context: int
    """Cached tokens that decode rows read."""
    num_passes: int
    """Times that all weights are read: 2 of a cut step."""
    num_collectives: int
    """Of all passes together."""
    num_bytes: int
    """Of all collectives together."""

    @classmethod
    def of(cls, rows: StepRows, *, num_passes: int, num_collectives: int, token_bytes: int) -> Self:
        """Return the shape of a step.

        Args:
            rows: The step.
            num_passes: 2 of a cut step, else 1.
            num_collectives: Of one pass.
            token_bytes: Of a token in one collective.
        """
        decodes = rows.num_decode_rows
        chunks, begins = rows.query_lens[decodes:], rows.begins[decodes:]
        return cls(
            num_tokens=rows.num_tokens,
            num_pairs=fsum((chunks * (begins + chunks / 2.0)).tolist()),
            num_context=int(rows.context_lens[:decodes].sum()),
            num_passes=num_passes,
            num_collectives=num_passes * num_collectives,
            num_bytes=num_collectives * token_bytes * rows.num_tokens,
        )
