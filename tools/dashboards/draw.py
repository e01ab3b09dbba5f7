"""Pictures of the dashboards' panels, drawn with matplotlib from the data of a Prometheus.

A stand-in for Grafana's own: same queries, same legends, same order of panels.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure

from tools.dashboards.queries import (
    BoardQuery,
    annotation_queries,
    documents,
    panel_queries,
    panels,
)

_POINTS: Final = 240
_COLUMNS: Final = 3
_INCHES: Final = 2.4
_STAT_INCHES: Final = 0.9
_TIMEOUT_S: Final = 60.0
_MAX_LEGEND: Final = 8
_UNITS: Final[Mapping[str, tuple[float, str]]] = {
    "percentunit": (100, "%"),
    "s": (1, "s"),
    "reqps": (1, "requests/s"),
    "ops": (1, "/s"),
}

# Grafana's colours as matplotlib has them.
_COLORS: Final[Mapping[str, str]] = {
    "green": "tab:green",
    "blue": "tab:blue",
    "purple": "tab:purple",
    "orange": "tab:orange",
    "yellow": "gold",
    "red": "tab:red",
}

Series = tuple[str, list[float], list[float]]
"""Name, times and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTime:
    """The time that is drawn, in seconds since 1970, and the window of rates."""

    start: float
    end: float
    window: str

    @property
    def step_s(self) -> float:
        """Seconds between two points."""
        return max((self.end - self.start) / _POINTS, 1.0)

    def variables(self) -> dict[str, str]:
        """Return the values of Grafana's own variables."""
        return {
            "__rate_interval": self.window,
            "__interval": f"{self.step_s:.0f}s",
            "__range": f"{self.end - self.start:.0f}s",
        }


def draw_all(url: str, values: Mapping[str, str], shown: DrawnTime, out: Path) -> Iterator[Path]:
    """Draw each dashboard into a file of the folder `out`; yield the files."""
    out.mkdir(parents=True, exist_ok=True)
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as prometheus:
        for name, document in documents().items():
            file = out / f"dashboard-{name}.png"
            filled_in = {**values, **shown.variables()}
            draw_board(prometheus, name, document, filled_in, shown).savefig(file)
            yield file


def draw_board(
    prometheus: httpx.Client,
    name: str,
    document: Mapping[str, Any],
    values: Mapping[str, str],
    shown: DrawnTime,
) -> Figure:
    """Return a picture of all panels of a dashboard."""
    drawn = panels(document)
    rows = [drawn[first : first + _COLUMNS] for first in range(0, len(drawn), _COLUMNS)]
    heights = [_STAT_INCHES if row[0]["type"] == "stat" else _INCHES for row in rows]
    figure = Figure(figsize=(5 * _COLUMNS, sum(heights)), dpi=64, layout="constrained")
    figure.suptitle(document["title"])
    marks = [
        moment
        for query in annotation_queries(name, document, values)
        for _, times, _ in ask(prometheus, query, shown)
        for moment in _beginnings(times, 1.5 * shown.step_s)
    ]
    grid = [*figure.subplots(len(rows), _COLUMNS, squeeze=False, height_ratios=heights).flat]
    for axes, panel in zip(grid, drawn, strict=False):
        series = [
            line
            for query in panel_queries(name, panel, values)
            for line in ask(prometheus, query, shown)
        ]
        _draw_panel(axes, panel, series, shown)
        if panel["type"] != "stat":
            for moment in marks:
                axes.axvline(_moment(moment), color="tab:blue", linewidth=0.3, alpha=0.4)
    for axes in grid[len(drawn) :]:
        axes.set_axis_off()
    return figure


def _beginnings(times: list[float], apart_s: float) -> Iterator[float]:
    """Yield the first moment of each run of moments."""
    before = -math.inf
    for moment in times:
        if moment - before > apart_s:
            yield moment
        before = moment


def ask(prometheus: httpx.Client, query: BoardQuery, shown: DrawnTime) -> list[Series]:
    """Return the series of a query."""
    params: dict[str, str | float] = {
        "query": query.expr,
        "start": shown.start,
        "end": shown.end,
        "step": shown.step_s,
    }
    answer = prometheus.get("/api/v1/query_range", params=params)
    answer.raise_for_status()
    return [
        (
            legend_of(query.legend, result["metric"]),
            [float(moment) for moment, _ in result["values"]],
            [float(value) for _, value in result["values"]],
        )
        for result in answer.json()["data"]["result"]
    ]


def legend_of(form: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series: `form` with its labels, or all of them."""
    if form in {"", "__auto"}:
        return ", ".join(f"{name}={value}" for name, value in labels.items() if name != "__name__")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), form)


def _draw_panel(
    axes: Axes, panel: Mapping[str, Any], series: list[Series], shown: DrawnTime
) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    colors = _colors(panel)
    factor, unit = _UNITS.get(defaults.get("unit", ""), (1, ""))
    axes.set_title(panel["title"] + (f" [{unit}]" if unit else ""), fontsize=9)
    if panel["type"] == "stat":
        _draw_stat(axes, series, factor, unit, defaults.get("thresholds"))
        return
    is_stacked = (defaults.get("custom") or {}).get("stacking", {}).get("mode") == "normal"
    below: dict[float, float] = {}
    for name, times, values in series:
        scaled = [factor * value for value in values]
        moments = [_moment(moment) for moment in times]
        if is_stacked:
            floor = [below.get(moment, 0.0) for moment in times]
            top = [low + value for low, value in zip(floor, scaled, strict=True)]
            below.update(zip(times, top, strict=True))
            axes.fill_between(
                moments, floor, top, label=name, alpha=0.6, linewidth=0, **colors(name)
            )
        else:
            axes.plot(moments, scaled, label=name, linewidth=1.2, **colors(name))
    axes.set_xlim(_moment(shown.start), _moment(shown.end))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(
        DateFormatter("%H:%M")  # type: ignore[no-untyped-call]  # it has no annotations
    )
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if 0 < len(series) <= _MAX_LEGEND and any(name for name, _, _ in series):
        axes.legend(fontsize=6, loc="best")


def _colors(panel: Mapping[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Return the colours that a panel's overrides give its series, as matplotlib's argument.

    Without one there is no argument: None would end matplotlib's cycle of colours.
    """
    overrides = [
        (override["matcher"]["options"].strip("/"), entry["value"]["fixedColor"])
        for override in panel["fieldConfig"].get("overrides", ())
        for entry in override["properties"]
        if entry["id"] == "color"
    ]

    def color_of(name: str) -> dict[str, Any]:
        matching = (color for pattern, color in overrides if re.match(pattern, name))
        color = next(matching, None)
        return {} if color is None else {"color": _COLORS[color]}

    return color_of


def _draw_stat(
    axes: Axes,
    series: list[Series],
    factor: float,
    unit: str,
    thresholds: Mapping[str, Any] | None,
) -> None:
    axes.set_axis_off()
    last = [values[-1] for _, _, values in series if values]
    text = ", ".join(f"{factor * value:.3g} {unit}".strip() for value in last) or "–"
    steps = thresholds["steps"] if thresholds and last else []
    passed = [step["color"] for step in steps if step["value"] is None or last[0] >= step["value"]]
    color = _COLORS[passed[-1]] if passed else "black"
    axes.text(0.5, 0.45, text, ha="center", va="center", fontsize=18, color=color)


def _moment(seconds: float) -> Any:
    # Matplotlib's converters take datetimes; its stubs want numbers.
    return datetime.fromtimestamp(seconds, tz=UTC)
