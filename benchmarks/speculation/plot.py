"""Draws tokens a second of each method, without drafts = 1, over the rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.speculation.session import Figures

_DPI: Final = 150


def save_plot(figures: "Sequence[Figures]", file: Path, *, off: str) -> None:
    """Write a PNG: a picture a workload, a line a method."""
    workloads = list(dict.fromkeys(row.workload for row in figures))
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(5.0 * len(workloads), 4.0), layout="constrained")
    pictures = figure.subplots(1, len(workloads), squeeze=False, sharey=True)[0]
    for axes, workload in zip(pictures, workloads, strict=True):
        axes.axhline(1.0, color="#636363", linewidth=0.8)
        for method in dict.fromkeys(row.method for row in figures if row.method != off):
            of_method = [row for row in figures if (row.workload, row.method) == (workload, method)]
            rows = [row.num_rows for row in of_method]
            axes.plot(rows, [row.ratio for row in of_method], marker="o", label=method)
            axes.fill_between(
                rows,
                [min(row.ratios) for row in of_method],
                [max(row.ratios) for row in of_method],
                alpha=0.15,
            )
        axes.set_xscale("log", base=2)
        all_rows = sorted({row.num_rows for row in figures})
        axes.set_xticks(all_rows, [str(rows) for rows in all_rows])
        axes.set_title(workload, fontsize=10)
        axes.set_xlabel("rows")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    pictures[0].set_ylabel("tokens a second, off = 1 (shade: all rounds)")
    pictures[0].legend(frameon=False)
    figure.savefig(file, dpi=_DPI)
