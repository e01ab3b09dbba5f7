"""Draws the runs: replicas, arrivals and attainment over time, attainment over replica-hours."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks.autoscaling.runs import FleetRun
from benchmarks.autoscaling.summary import OWN, Summary, unbeaten

_DPI: Final = 110
_MINUTE_S: Final = 60.0
_PERCENT: Final = 100.0
_BELOW: Final = 5.0
"""Points of attainment that are shown below the lowest of the controllers."""
_REFERENCES: Final = {"fixed": "grey", "oracle": "black"}
"""Colors of what can be bought by a number, or by knowing what comes."""
_SMOOTH: Final = 4
"""Periods over which attainment is averaged."""


def save_runs(runs: Sequence[FleetRun], rows: Sequence[Summary], file: Path, *, title: str) -> None:
    """Write a PNG with a row of panels for each load and size."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: (row.load, row.size))]
    # Figure without pyplot: no display, no global state.
    figure = Figure(figsize=(14.0, 1.0 + 3.0 * len(groups)), layout="constrained")
    figure.suptitle(title, fontsize=9)
    panels = figure.subplots(len(groups), 3, squeeze=False)
    families = list(dict.fromkeys(row.family for row in rows))
    colors = {name: f"C{number}" for number, name in enumerate(families)} | _REFERENCES
    for (replicas, attained, pareto), group in zip(panels, groups, strict=True):
        shown = _first_runs(runs, group)
        _draw_replicas(replicas, shown, group[0], colors)
        _draw_attainment(attained, shown, colors)
        _draw_pareto(pareto, group, colors)
    figure.savefig(file, dpi=_DPI)


def _first_runs(runs: Sequence[FleetRun], group: Sequence[Summary]) -> list[FleetRun]:
    """Return a run of each controller with its own parameter, of the first seed."""
    by_controller: dict[str, FleetRun] = {}
    for run in runs:
        task = run.task
        is_here = (task.load, task.size) == (group[0].load, group[0].size)
        if is_here and "=" not in task.controller:
            by_controller.setdefault(task.controller, run)
    return list(by_controller.values())


def _draw_replicas(
    axes: Any, runs: Sequence[FleetRun], row: Summary, colors: dict[str, str]
) -> None:
    axes.set_title(f"{row.load}, {row.size} replicas ({row.model})", fontsize=8)
    for run in runs:
        name = run.task.controller
        minutes = [moment.now_s / _MINUTE_S for moment in run.result.moments]
        desired = [moment.desired for moment in run.result.moments]
        width = 2.0 if name == OWN else 0.9
        axes.step(minutes, desired, where="post", color=colors[name], label=name, linewidth=width)
    if not runs:
        return
    arrivals = axes.twinx()
    moments = runs[0].result.moments
    arrivals.plot(
        [moment.now_s / _MINUTE_S for moment in moments],
        [moment.observation.arrival_rate for moment in moments],
        color="grey",
        linewidth=0.6,
    )
    arrivals.set_ylabel("arrivals (req/s, grey)", fontsize=7)
    axes.set_ylabel("desired replicas", fontsize=8)
    axes.legend(fontsize=6, frameon=False)


def _draw_attainment(axes: Any, runs: Sequence[FleetRun], colors: dict[str, str]) -> None:
    for run in runs:
        periods = run.result.periods
        points = []
        for number in range(0, len(periods) - _SMOOTH + 1, _SMOOTH):
            part = periods[number : number + _SMOOTH]
            arrived = sum(period.num_arrived for period in part)
            if arrived:
                share = sum(period.num_met for period in part) / arrived
                points.append((number * run.period_s / _MINUTE_S, _PERCENT * share))
        name = run.task.controller
        width = 2.0 if name == OWN else 0.8
        x, y = zip(*points, strict=True) if points else ((), ())
        axes.plot(x, y, color=colors[name], linewidth=width)
    axes.set_ylabel("of arrivals, met both targets (%)", fontsize=8)
    axes.set_xlabel("minutes", fontsize=8)


def _draw_pareto(axes: Any, group: Sequence[Summary], colors: dict[str, str]) -> None:
    for family in dict.fromkeys(row.family for row in group):
        own = [row for row in group if row.family == family]
        points = [(row.replica_hours.mean, _PERCENT * row.attainment.mean) for row in unbeaten(own)]
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), color=colors[family], marker=".", linewidth=0.8)
        for row in own:
            if row.is_tuned:
                continue
            at = (row.replica_hours.mean, _PERCENT * row.attainment.mean)
            axes.scatter(*at, color=colors[family], marker="o", s=36)
            axes.annotate(family, at, fontsize=7)
    axes.set_xlabel("replica-hours; lines: other parameters", fontsize=8)
    axes.set_ylabel("met both targets (%)", fontsize=8)
    axes.margins(0.15)
    # Few replicas keep the targets of few requests: fixed numbers would flatten the rest.
    shown = [_PERCENT * row.attainment.mean for row in group if row.family != "fixed"]
    axes.set_ylim(max(0.0, min(shown, default=0.0) - _BELOW), _PERCENT + 1.0)
