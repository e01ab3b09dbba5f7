"""The dashboards' files are current, and each query names series and labels that there are."""

import re
from typing import Any

import pytest

from tools.dashboards.boards import BOARDS, FOLDER, file_of, text_of
from tools.dashboards.draw import legend_of
from tools.dashboards.queries import (
    annotation_queries,
    documents,
    filled,
    panel_queries,
    panels,
    variable_queries,
)

VALUES = {
    "namespace": "models",
    "service": "tiny",
    "pod": ".*",
    "__rate_interval": "1m",
    "__interval": "15s",
    "__range": "1h",
}


@pytest.mark.parametrize("name", BOARDS)
def test_the_file_is_current(name: str) -> None:
    assert file_of(name).read_text() == text_of(BOARDS[name]), "run: python -m tools.dashboards"


def test_there_is_no_file_beside_them() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_places_of_their_own(name: str) -> None:
    document = documents()[name]
    ids = [panel["id"] for panel in document["panels"]]
    titles = [panel["title"] for panel in panels(document)]

    assert len(ids) == len(set(ids))
    assert len(titles) == len(set(titles))
    for panel in document["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    cells = [cell for panel in document["panels"] for cell in covered(panel)]
    assert len(cells) == len(set(cells))


def covered(panel: dict[str, Any]) -> list[tuple[int, int]]:
    grid = panel["gridPos"]
    return [
        (grid["x"] + right, grid["y"] + down)
        for right in range(grid["w"])
        for down in range(grid["h"])
    ]


@pytest.mark.parametrize("name", BOARDS)
def test_no_variable_is_left_in_a_query(name: str) -> None:
    document = documents()[name]
    queries = [
        *(query for panel in panels(document) for query in panel_queries(name, panel, VALUES)),
        *annotation_queries(name, document, VALUES),
        *variable_queries(name, document, VALUES),
    ]

    assert queries
    assert not [query for query in queries if "$" in query.expr]


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_that_is_used_can_be_chosen(name: str) -> None:
    text = file_of(name).read_text()
    used = set(re.findall(r"\$(?!__)(\w+)", text))
    offered = {one["name"] for one in documents()[name]["templating"]["list"]}

    assert used == offered


def test_longer_names_of_variables_are_filled_first() -> None:
    assert filled("$a $ab", {"a": "1", "ab": "2"}) == "1 2"


def test_a_legend_is_filled_from_labels() -> None:
    labels = {"__name__": "up", "pod": "a", "job": "b"}

    assert legend_of("{{pod}} of {{job}}", labels) == "a of b"
    assert legend_of("__auto", labels) == "pod=a, job=b"
