"""The table and the document of the figures. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from benchmarks.overlap.figures import (
    BOUND_GOAL,
    MOST_LOSS,
    OVERLAP_GOAL,
    OVERLAP_GOAL_AT_BALANCE,
    PROMISED,
    CaseFigures,
)

_COLUMNS: Final = (
    "tokens",
    "prompts",
    "layers",
    "Mbit/s",
    "share",
    "whole, ms",
    "cut, ms",
    "overlap",
    "by wall",
    "speedup",
    "bound",
    "of it",
    "halves",
)


def table_of(figures: Sequence[CaseFigures]) -> Table:
    """A row a case."""
    table = Table(title="Two ranks, steps whole and cut", title_justify="left", box=None)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("missed", no_wrap=True)
    for one in figures:
        work = one.case.work
        table.add_row(
            f"{work.num_tokens:,}",
            str(work.num_prompts),
            str(work.num_layers),
            "" if one.rate is None else f"{one.rate / 1e6:,.0f}",
            f"{one.share:.2f}",
            f"{one.whole_s * 1e3:,.0f}",
            f"{one.halves_s * 1e3:,.0f}",
            f"{one.timeline_overlap:.2f}",
            f"{one.wall_overlap:.2f}",
            f"{one.speedup:.3f}",
            f"{one.bound:.3f}",
            f"{one.of_bound:.1%}",
            f"{one.halves_cost:+.1%}",
            ", ".join(one.missed()) or "none",
        )
    return table


def document(
    figures: Sequence[CaseFigures],
    *,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """All of it, for JSON."""
    return {
        **facts,
        "settings": dict(settings),
        "goals": {
            "overlap_at_50_to_100_percent": OVERLAP_GOAL_AT_BALANCE,
            "overlap_elsewhere": OVERLAP_GOAL,
            "overlap_promised": PROMISED,
            "of_bound": BOUND_GOAL,
            "most_loss": MOST_LOSS,
        },
        "cases": [one.document() for one in figures],
    }
