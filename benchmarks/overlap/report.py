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
    "reach",
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
    for case in figures:
        work = case.case.work
        table.add_row(
            f"{work.num_tokens:,}",
            str(work.num_prompts),
            str(work.num_layers),
            "" if case.rate is None else f"{case.rate / 1e6:,.0f}",
            f"{case.share:.2f}",
            f"{case.whole_s * 1e3:,.0f}",
            f"{case.halves_s * 1e3:,.0f}",
            f"{case.timeline_overlap:.2f}",
            f"{case.wall_overlap:.2f}",
            f"{case.reachable:.2f}",
            f"{case.speedup:.3f}",
            f"{case.bound:.3f}",
            f"{case.of_bound:.1%}",
            f"{case.halves_cost:+.1%}",
            ", ".join(case.missed()) or "none",
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
        "cases": [case.document() for case in figures],
    }
