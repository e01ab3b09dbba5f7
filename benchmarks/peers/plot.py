"""Draws the figures: each engine as a multiple of the best peer, and the limit above it."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks.peers.engines import TANDEM
from benchmarks.peers.figures import RowFigures
from benchmarks.peers.report import title_of_engine

_COLORS: Final = {
    TANDEM: "#41ab5d",
    "openvino": "#4292c6",
    "llamacpp": "#9ecae1",
    "vllm": "#bcbddc",
}
_DPI: Final = 150
_ROOM: Final = 0.8
"""Of a position on the axis, shared out over the engines."""


def save_plot(figures: Sequence[RowFigures], file: Path, *, title: str) -> None:
    """Write a PNG with one panel for each model and type of weights."""
    panels = [
        list(group) for _, group in groupby(figures, key=lambda row: (row.model, row.weights))
    ]
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(7.5, 1.0 + 2.8 * len(panels)), layout="constrained")
    axes_of = figure.subplots(len(panels), 1, squeeze=False)
    figure.suptitle(title, fontsize=9)
    for (axes,), rows in zip(axes_of, panels, strict=True):
        _draw_panel(axes, rows)
    figure.savefig(file, dpi=_DPI)


def _draw_panel(axes: Any, rows: Sequence[RowFigures]) -> None:
    names = [each.engine for each in rows[0].engines]
    width = _ROOM / len(names)
    for number, name in enumerate(names):
        offset = (number - (len(names) - 1) / 2) * width
        heights = [_height(row, number) for row in rows]
        bars = axes.bar(
            [at + offset for at in range(len(rows))],
            heights,
            width=width,
            color=_COLORS[name],
            label=title_of_engine(name),
        )
        labels = [f"{height:.2f}" if height else "" for height in heights]
        axes.bar_label(bars, labels, fontsize=6, padding=1)
    for kind, color, values in (
        ("limit", "black", [_relative(row, row.limit) for row in rows]),
        ("goal", "#cb181d", [row.goal for row in rows]),
    ):
        _draw_lines(axes, values, color=color, label=kind)
    axes.set_xticks(range(len(rows)), [str(row.row) for row in rows], fontsize=8)
    axes.set_title(f"{rows[0].model}, {rows[0].weights}", fontsize=8)
    axes.set_ylabel("tokens/s ÷ best peer", fontsize=8)
    axes.legend(ncols=len(names) + 2, fontsize=6, frameon=False)
    axes.margins(y=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _draw_lines(axes: Any, values: Sequence[float | None], *, color: str, label: str) -> None:
    positions = [at for at, value in enumerate(values) if value is not None]
    axes.hlines(
        [value for value in values if value is not None],
        [at - _ROOM / 2 for at in positions],
        [at + _ROOM / 2 for at in positions],
        colors=color,
        linestyles="dashed",
        linewidth=1,
        label=label,
    )


def _height(row: RowFigures, number: int) -> float:
    return _relative(row, row.engines[number].tokens_per_s) or 0.0


def _relative(row: RowFigures, value: float | None) -> float | None:
    """A speed as a multiple of the best peer's; of Tandem's where there is no peer."""
    base = row.best_peer or next((each for each in row.engines if each.engine == TANDEM), None)
    if base is None or not base.tokens_per_s or value is None:
        return None
    return value / base.tokens_per_s
