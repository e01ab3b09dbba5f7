"""The series of draft tokens; made at a scrape."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from tandem_engine.api.drafts import DraftMethod
from tandem_engine.api.output import DraftCounts
from tandem_engine.async_engine.families import Families


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
