"""The series of micro-batches; made at a scrape."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from tandem_engine.api.micro_batch_stats import MicroBatchStats
from tandem_engine.async_engine.families import Families


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
