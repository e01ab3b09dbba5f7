"""Series of what a replica may have: several ranks, micro-batches, drafts; made at a scrape."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from prometheus_client.core import Metric

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.api.drafts import DraftMethod
from tandem_engine.api.micro_batch_stats import MicroBatchStats
from tandem_engine.api.output import DraftCounts
from tandem_engine.api.parallelism import ParallelismConfig
from tandem_engine.api.rank_bytes import RankBytes
from tandem_engine.async_engine.families import Families


def device_series(families: Families, facts: DeviceFacts) -> Metric:
    """Return what the ranks compute on, as labels."""
    return families.info(
        "device",
        "What the replica computes on: backend, name, software, and memory of a rank.",
        {name: _label(value) for name, value in asdict(facts).items()},
    )


def _label(value: object) -> str:
    """A value without what the format of Prometheus escapes."""
    return " ".join(str(value).replace('"', "'").replace("\\", "/").split())


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


def micro_batch_series(families: Families, stats: MicroBatchStats) -> Iterator[Metric]:
    """Yield what micro-batches bring and cost; without a cut step in the last hour, no overlap."""
    if stats.overlap is not None:
        yield families.gauge(
            "micro_batch_overlap_ratio",
            "Hidden communication over the lesser of communication and computation, last hour.",
            stats.overlap,
        )
    yield families.counters(
        "communication_seconds",
        "Seconds of communication between ranks, hidden under computation or exposed.",
        "visibility",
        {"hidden": stats.hidden_s, "exposed": stats.exposed_s},
    )
    yield families.counter(
        "micro_batch_splits", "Steps that were cut into two halves.", stats.num_splits
    )
    yield families.counters(
        "micro_batch_refusals",
        "Steps that were not cut, by reason.",
        "reason",
        dict(stats.refusals),
    )
    yield families.gauges(
        "micro_batch_state",
        "1 where steps of the phase are cut if that is predicted to pay, 0 where none is.",
        "phase",
        {phase: float(state.is_open) for phase, state in stats.gates.items()},
    )
    yield families.gauge(
        "micro_batch_kv_blocks",
        "KV blocks that the memory would hold besides without micro-batches.",
        stats.num_kv_blocks,
    )


def draft_series(families: Families, counts: Mapping[DraftMethod, DraftCounts]) -> Iterator[Metric]:
    """Yield drafts that were checked, and those of them that were right by their position."""
    yield families.counters(
        "draft_tokens",
        "Draft tokens that steps checked, by the method that proposed them.",
        "method",
        {method: of_method.num_drafted for method, of_method in counts.items()},
    )
    yield families.counters_of(
        "accepted_draft_tokens",
        "Draft tokens that were right, by method and position among those of a sequence, from 0.",
        ("method", "position"),
        {
            (method, str(at)): number
            for method, of_method in counts.items()
            for at, number in enumerate(of_method.accepted)
        },
    )
