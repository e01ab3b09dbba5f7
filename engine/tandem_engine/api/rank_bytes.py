"""Parts of the memory of a rank, as data."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """Bytes of one rank, as they were shared out when its replica started."""

    rank: int
    process: int
    """Held before the weights were read."""
    weights: int
    kv_cache: int
    host_cache: int = 0
    """Blocks for sequences that are swapped out."""
    step: int = 0
    """Kept for the largest step; 0: not measured, since the KV blocks were given."""

    def parts(self) -> Iterator[tuple[str, int]]:
        """Yield the parts that there are, by the names that their metric has."""
        for name in ("process", "weights", "kv_cache", "host_cache", "step"):
            if num_bytes := getattr(self, name):
                yield name, num_bytes
