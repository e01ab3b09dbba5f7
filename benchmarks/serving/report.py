"""Shows the figures: tables on a terminal, a document for the file."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from benchmarks.serving.statistics import Spread, Summary

_METRICS: Final = ("ttft", "tpot", "itl", "e2e")
_FEW_EVENTS: Final = 0.9
"""Events a token below which the tables have a warning."""


def result_document(
    summaries: Sequence[Summary], *, facts: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """Content of result.json."""
    return {**facts, "settings": settings, "cases": [asdict(summary) for summary in summaries]}


def show(summaries: Sequence[Summary], console: Console) -> None:
    """Print the tables."""
    parts: list[RenderableType] = [_throughput(summaries), "", _latencies(summaries)]
    parts += [
        f"[red]{escape(summary.name)}: {failure.count} × {escape(failure.reason)}[/red], "
        f"such as: {escape(failure.example)}"
        for summary in summaries
        for failure in summary.failures
    ]
    parts += [
        f"{escape(summary.name)}: only {summary.events_per_token:.0%} of the tokens had an event "
        "of their own; TTFT and ITL are times of those."
        for summary in summaries
        if summary.events_per_token is not None and summary.events_per_token < _FEW_EVENTS
    ]
    parts += [
        f"{escape(summary.name)}: {summary.num_clipped} requests were cut to the model's length."
        for summary in summaries
        if summary.num_clipped
    ]
    console.print(Group(*parts))


def _throughput(summaries: Sequence[Summary]) -> Table:
    table = Table("case", box=None, pad_edge=False)
    has_goodput = any(summary.goodput for summary in summaries)
    names = ["requests", "failed", "seconds", "req/s", "output tok/s", "total tok/s"]
    for name in [*names, *(["goodput", "good req/s"] if has_goodput else []), "client CPU"]:
        table.add_column(name, justify="right")
    for summary in summaries:
        table.add_row(*_throughput_row(summary))
    return table


def _throughput_row(summary: Summary) -> list[str]:
    goodput = summary.goodput
    return [
        escape(summary.name),
        str(summary.num_requests),
        str(summary.num_failed),
        f"{summary.wall_s:.1f}",
        f"{summary.requests_per_s:.2f}",
        f"{summary.output_tokens_per_s:.1f}",
        f"{summary.total_tokens_per_s:.1f}",
        *([f"{goodput.share:.1%}", f"{goodput.requests_per_s:.2f}"] if goodput else []),
        f"{summary.client_cpu_share:.1%}",
    ]


def _latencies(summaries: Sequence[Summary]) -> Table:
    table = Table("case", "ms", box=None, pad_edge=False)
    for name in ("mean", "P50", "P90", "P99"):
        table.add_column(name, justify="right")
    for summary in summaries:
        for metric in _METRICS:
            spread: Spread | None = getattr(summary, f"{metric}_ms")
            name = escape(summary.name) if metric == _METRICS[0] else ""
            table.add_row(name, metric.upper(), *_cells(spread))
    return table


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["–"] * 4
    return [f"{value:.2f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99)]
