"""Panels, variables and annotations, as all dashboards have them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as StatPanel
from grafana_foundation_sdk.builders.timeseries import Panel as TimeseriesPanel
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="$datasource")
_THIRD: Final = 8
_STAT: Final = 4
_HEIGHT: Final = 7
_STAT_HEIGHT: Final = 4
_FILL: Final = 25
"""Percent of opacity below stacked lines."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel, and the name of each of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Lines over time, or with `is_stat` the value of now."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    text: str = ""
    """Its contents, and the signs to look for."""

    is_stat: bool = False
    is_stacked: bool = False
    width: int = _THIRD
    colors: Mapping[str, str] = field(default_factory=dict)
    """Colours (green, blue, purple, orange, yellow, red) by a pattern of names of series."""

    good_from: float | None = None
    """Value from which on a single value is green; below it is red. None: it has no colour."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A list to choose from; `query` fills it."""

    name: str
    label: str
    query: str
    has_all: bool = False
    """True: several values may be chosen, or all."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on all panels at the moments at which a query has values."""

    name: str
    expr: str
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    text: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[Annotation, ...] = ()


def stat(
    title: str,
    *queries: Query,
    unit: str = "short",
    text: str = "",
    good_from: float | None = None,
) -> Panel:
    """Return a panel of single values."""
    return Panel(
        title=title,
        queries=queries,
        unit=unit,
        text=text,
        is_stat=True,
        width=_STAT,
        good_from=good_from,
    )


def lines(
    title: str,
    *queries: Query,
    unit: str = "short",
    text: str = "",
    is_stacked: bool = False,
    width: int = _THIRD,
    colors: Mapping[str, str] | None = None,
) -> Panel:
    """Return a panel of lines over time."""
    return Panel(
        title=title,
        queries=queries,
        unit=unit,
        text=text,
        is_stacked=is_stacked,
        width=width,
        colors=colors or {},
    )


def build(board: Board) -> builders.Dashboard:
    """Return the dashboard as the SDK builds it."""
    dashboard = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.text)
        .tags(["tandem"])
        .time("now-3h", "now")
        .timezone("browser")
        .refresh("30s")
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(
            builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
    )
    for variable in board.variables:
        dashboard = dashboard.with_variable(_variable(variable))
    for annotation in board.annotations:
        dashboard = dashboard.annotation(_annotation(annotation))
    ids = count(1)
    for row in board.rows:
        dashboard = dashboard.with_row(builders.Row(row.title).id(next(ids)))
        for panel in row.panels:
            dashboard = dashboard.with_panel(_panel(panel).id(next(ids)))
    return dashboard


def _variable(variable: Variable) -> builders.QueryVariable:
    built = (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    if not variable.has_all:
        return built
    return built.multi(multi=True).include_all(include_all=True).all_value(".*")


def _annotation(annotation: Annotation) -> builders.AnnotationQuery:
    return (
        builders.AnnotationQuery()
        .name(annotation.name)
        .datasource(SOURCE)
        .enable(enable=True)
        .icon_color(annotation.color)
        .expr(annotation.expr)
    )


def _panel(panel: Panel) -> StatPanel | TimeseriesPanel:
    built = _stat(panel.good_from) if panel.is_stat else _lines(panel)
    built = built.title(panel.title).datasource(SOURCE).unit(panel.unit).span(panel.width)
    if panel.text:
        built = built.description(panel.text)
    for pattern, color in panel.colors.items():
        fixed = DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})
        built = built.override_by_regexp(f"/^(?:{pattern})$/", [fixed])
    for query in _targets(panel.queries, is_instant=panel.is_stat):
        built = built.with_target(query)
    return built


def _stat(good_from: float | None) -> StatPanel:
    last = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
    built = StatPanel().height(_STAT_HEIGHT).reduce_options(last).no_value("–")
    if good_from is None:
        return built.color_mode(BigValueColorMode.NONE)
    steps = [Threshold(value=None, color="red"), Threshold(value=good_from, color="green")]
    thresholds = builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
    return built.color_mode(BigValueColorMode.VALUE).thresholds(thresholds)


def _lines(panel: Panel) -> TimeseriesPanel:
    legend = (
        common_builders.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )
    built = TimeseriesPanel().height(_HEIGHT).legend(legend).min(0)
    if panel.is_stacked:
        stacking = common_builders.StackingConfig().mode(StackingMode.NORMAL)
        return built.stacking(stacking).fill_opacity(_FILL)
    return built


def _targets(queries: Iterable[Query], *, is_instant: bool) -> Iterable[Dataquery]:
    for letter, query in zip("ABCDEFGHIJ", queries, strict=False):
        target = Dataquery().expr(query.expr).legend_format(query.legend or "__auto").ref_id(letter)
        yield target.instant() if is_instant else target.range()
