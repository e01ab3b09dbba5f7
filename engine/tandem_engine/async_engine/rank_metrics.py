"""The series of a replica's ranks; made at a scrape."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from tandem_engine.api.parallelism import ParallelismConfig
from tandem_engine.api.rank_bytes import RankBytes
from tandem_engine.async_engine.families import Families


def rank_series(
    families: Families, parallelism: ParallelismConfig, ranks: Sequence[RankBytes]
) -> Iterator[Metric]:
    """Yield the degrees of a replica, and the memory of each of its ranks where it is known."""
    yield families.info(
        "parallelism",
        "Ranks of the replica, and the degrees by which they share the model.",
        {name: str(value).lower() for name, value in parallelism},
    )
    if ranks:
        yield families.gauges_of(
            "rank_memory_bytes",
            "Memory of each rank by what it is for, as shared out when the replica started.",
            ("rank", "part"),
            {(str(rank.rank), part): size for rank in ranks for part, size in rank.parts()},
        )
