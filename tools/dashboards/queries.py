"""The queries of the dashboards' files, with values in the place of Grafana's variables."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tools.dashboards.boards import BOARDS, file_of

_LABEL_VALUES: Final = re.compile(r"label_values\((?P<series>.*), (?P<label>\w+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardQuery:
    """A query, and its place."""

    board: str
    place: str
    """Title of the panel, or name of the annotation or variable."""

    expr: str
    legend: str = ""
    label: str = ""
    """Of a variable: the label whose values it lists."""

    is_instant: bool = False

    def __str__(self) -> str:
        return f"{self.board} / {self.place}: {self.expr}"


def documents() -> dict[str, dict[str, Any]]:
    """Return the dashboards by name, as they are in their files."""
    return {name: json.loads(file_of(name).read_text(encoding="utf-8")) for name in BOARDS}


def panels(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard that have queries."""
    return [panel for panel in document["panels"] if panel.get("targets")]


def panel_queries(
    name: str, panel: Mapping[str, Any], values: Mapping[str, str]
) -> Iterator[BoardQuery]:
    """Yield the queries of a panel."""
    for target in panel["targets"]:
        yield BoardQuery(
            board=name,
            place=panel["title"],
            expr=filled(target["expr"], values),
            legend=target.get("legendFormat", ""),
            is_instant=bool(target.get("instant")),
        )


def annotation_queries(
    name: str, document: Mapping[str, Any], values: Mapping[str, str]
) -> Iterator[BoardQuery]:
    """Yield the queries of annotations."""
    for annotation in document["annotations"].get("list", ()):
        yield BoardQuery(
            board=name, place=annotation["name"], expr=filled(annotation["expr"], values)
        )


def variable_queries(
    name: str, document: Mapping[str, Any], values: Mapping[str, str]
) -> Iterator[BoardQuery]:
    """Yield the queries that fill variables."""
    for variable in document["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match = _LABEL_VALUES.fullmatch(variable["query"]["query"])
        if match is None:
            raise ValueError(
                f"variable {variable['name']}: {variable['query']} is not label_values(…, …)"
            )
        expr = filled(match["series"], values)
        yield BoardQuery(board=name, place=variable["name"], expr=expr, label=match["label"])


def filled(expr: str, values: Mapping[str, str]) -> str:
    """Return `expr` with the values of variables; longer names first, since `$a` begins `$ab`."""
    for name in sorted(values, key=len, reverse=True):
        expr = expr.replace(f"${name}", values[name])
    return expr
