"""The figures as a table, and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.serving.result import write_figures

_MS: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians of the decode steps of one load, in seconds."""

    model: str
    num_rows: int
    sampling: str
    async_scheduling: bool | None
    parts_s: Mapping[str, float]
    """By part, see `profiler.PARTS`."""
    forward_wall_s: float
    """A forward pass on the wall."""
    period_s: float
    """From one forward pass to the next, on the wall."""

    @property
    def beside_s(self) -> float:
        """All parts but the forward pass."""
        return sum(self.parts_s.values()) - self.parts_s["forward"]

    @property
    def share(self) -> float:
        """Of the work of a step, what is not its forward pass; part of it may be hidden by one."""
        return self.beside_s / (self.beside_s + self.parts_s["forward"])

    @property
    def idle_share(self) -> float:
        """Of the time of a step on the wall, when no forward pass runs."""
        return max(0.0, 1.0 - self.forward_wall_s / self.period_s)


def show(console: Console, figures: Sequence[Figures], *, num_threads: int) -> None:
    """Print the table in full, also where the terminal is narrow."""
    parts = list(figures[0].parts_s) if figures else []
    clock = "CPU time" if num_threads == 1 else "CPU time, forward passes by the wall"
    title = f"A decode step in ms, medians, {num_threads} threads, {clock}"
    table = Table(title=title, title_justify="left", box=None)
    for column in ("model", "sampling", "async"):
        table.add_column(column)
    for column in ("rows", *parts, "beside %", "period", "idle %"):
        table.add_column(column, justify="right")
    for row in figures:
        async_scheduling = (
            "default" if row.async_scheduling is None else "yes" if row.async_scheduling else "no"
        )
        table.add_row(
            row.model,
            row.sampling,
            async_scheduling,
            str(row.num_rows),
            *(f"{row.parts_s[part] * _MS:.3f}" for part in parts),
            f"{100 * row.share:.1f}",
            f"{row.period_s * _MS:.3f}",
            f"{100 * row.idle_share:.1f}",
        )
    console.print(table, soft_wrap=True)


def write_json(path: Path, figures: Sequence[Figures], *, settings: dict[str, Any]) -> None:
    """All figures, with the machine and the commit."""
    write_figures(
        path,
        settings=settings,
        figures=[
            {
                **asdict(row),
                "beside_s": row.beside_s,
                "beside_share": row.share,
                "idle_share": row.idle_share,
            }
            for row in figures
        ],
    )
