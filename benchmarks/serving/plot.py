"""Draws the figures: throughput, TTFT and TPOT of each case."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks.serving.statistics import Spread, Summary

_PERCENTILES: Final = (
    ("P50", "p50", "#9ecae1"),
    ("P90", "p90", "#4292c6"),
    ("P99", "p99", "#08306b"),
)
_BAR: Final = 0.26
_DPI: Final = 150


def save_plot(summaries: Sequence[Summary], file: Path, *, title: str) -> None:
    """Write a PNG."""
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(max(6.0, 2.5 + 1.4 * len(summaries)), 9.0), layout="constrained")
    throughput, ttft, tpot = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title, fontsize=10)
    _draw_throughput(throughput, summaries)
    _draw_percentiles(ttft, [summary.ttft_ms for summary in summaries], "TTFT (ms)")
    _draw_percentiles(tpot, [summary.tpot_ms for summary in summaries], "TPOT (ms)")
    names = [summary.name for summary in summaries]
    tpot.set_xticks(range(len(names)), names, rotation=20 if len(names) > 4 else 0)  # noqa: PLR2004
    tpot.set_xlabel("case: concurrency × input tokens × output tokens")
    figure.align_ylabels()
    figure.savefig(file, dpi=_DPI)


def _draw_throughput(axes: Any, summaries: Sequence[Summary]) -> None:
    values = [summary.output_tokens_per_s for summary in summaries]
    bars = axes.bar(range(len(values)), values, width=0.6, color="#41ab5d")
    axes.bar_label(bars, [_label(value) for value in values], fontsize=8, padding=2)
    axes.set_ylabel("output (tokens/s)")
    _tidy(axes)


def _draw_percentiles(axes: Any, spreads: Sequence[Spread | None], label: str) -> None:
    for number, (name, field, color) in enumerate(_PERCENTILES):
        positions = [at + (number - 1) * _BAR for at in range(len(spreads))]
        values = [getattr(spread, field) if spread else 0.0 for spread in spreads]
        bars = axes.bar(positions, values, width=_BAR, color=color, label=name)
        axes.bar_label(bars, [_label(value) for value in values], fontsize=7, padding=2)
    axes.set_ylabel(label)
    axes.legend(ncols=len(_PERCENTILES), fontsize=8, frameon=False)
    _tidy(axes)


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits


def _tidy(axes: Any) -> None:
    axes.margins(y=0.22)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
