"""Every query of dashboards and rules, by a real Prometheus that scrapes a service under load."""

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.harness import Service
from tests.e2e.measured import (
    NAMESPACE,
    SLO,
    load,
    measured_service,
    operating,
    rule_expressions,
    scraped,
)
from tests.patience import HANG_S
from tests.ports import free_port
from tests.prometheus import Prometheus, programs
from tools.dashboards.queries import (
    BoardQuery,
    annotation_queries,
    documents,
    panel_queries,
    panels,
    variable_queries,
)

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]

RANGE_S: Final = 600
POLL_S: Final = 3.0
VALUES: Final = {
    "namespace": NAMESPACE,
    "pod": ".*",
    "__rate_interval": "30s",
    "__interval": "5s",
    "__range": f"{RANGE_S}s",
}


@pytest.fixture
def binary() -> Path:
    return programs()["prometheus"]


@pytest.fixture
def with_targets(service: Service) -> Iterator[Service]:
    """The service with latency targets and drafts, which it has no longer afterwards."""
    before = service.manifest.read_text()
    service.write(with_targets_and_drafts)
    service.apply()
    yield service
    service.manifest.write_text(before)
    service.apply()


def with_targets_and_drafts(document: dict[str, Any]) -> None:
    document["spec"]["slo"] = SLO
    document["spec"]["engine"]["speculation"] = {"method": "ngram"}


def is_about_micro_batches(query: BoardQuery) -> bool:
    """True of series that a replica of one rank has none of."""
    return "tandem_micro_batch_" in query.expr or "tandem_communication_" in query.expr


def queries(service: str) -> Iterator[tuple[str, BoardQuery]]:
    """Every query of the dashboards and of the rules, and what it is of."""
    values = {**VALUES, "service": service}
    for name, document in documents().items():
        for panel in panels(document):
            for query in panel_queries(name, panel, values):
                yield "panel", query
        for query in annotation_queries(name, document, values):
            yield "annotation", query
        for query in variable_queries(name, document, values):
            yield "variable", query
    for place, expr in rule_expressions(measured_service(service)):
        yield "rule", BoardQuery(board="rules", place=place, expr=expr)


def with_values(prometheus: Prometheus, asked: Mapping[int, tuple[str, BoardQuery]]) -> list[int]:
    """The numbers of the queries that have values now."""
    return [number for number, (_, query) in asked.items() if has_values(prometheus, query)]


def has_values(prometheus: Prometheus, query: BoardQuery) -> bool:
    if query.label:
        path = f"label/{query.label}/values"
        return bool(prometheus.get(path, **{"match[]": query.expr}))
    if query.expr.replace(".", "", 1).isdigit():
        return True
    return any(is_number(one) for one in prometheus.query(query.expr))


def is_number(sample: dict[str, Any]) -> bool:
    return not math.isnan(float(sample["value"][1]))


async def test_every_query_of_every_panel_and_rule_has_values(
    with_targets: Service, binary: Path, tmp_path: Path
) -> None:
    """Marks and alerts come and go, so each query has values at one moment of the load at least."""
    operator_port = free_port()
    every = [one for one in queries(with_targets.name) if not is_about_micro_batches(one[1])]
    empty = dict(enumerate(every))
    deadline = time.monotonic() + HANG_S
    with scraped(with_targets, operator_port, binary, tmp_path) as prometheus:
        async with operating(with_targets, operator_port), load(with_targets):
            while empty and time.monotonic() < deadline:
                await asyncio.sleep(POLL_S)
                for number in await asyncio.to_thread(with_values, prometheus, empty):
                    del empty[number]

    assert len(every) > 150
    assert not [f"{kind} {query}" for kind, query in empty.values()]
