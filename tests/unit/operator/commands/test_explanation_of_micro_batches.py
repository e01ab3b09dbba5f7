"""Micro-batches in an explanation."""

import pytest

from tandem_operator.commands.replica_lines import micro_batch_line
from tests.unit.operator.commands.test_explanation import NOW, READY, Object, service, status


def explained(engine: Object, micro_batch: Object | None = None) -> str | None:
    found = service(status(READY, ready=1))
    found["spec"]["engine"] = engine
    if micro_batch is not None:
        found["status"]["microBatch"] = micro_batch
    return micro_batch_line(found, NOW)


@pytest.mark.parametrize(
    "engine", [{}, {"streamOptions": {}}, {"streamOptions": {"microBatch": 1}}]
)
def test_a_service_without_micro_batches_has_no_line(engine: Object) -> None:
    assert explained(engine, {"message": "old", "measuredAt": NOW}) is None


def test_costs_and_gains_are_told_with_their_age() -> None:
    on = {"streamOptions": {"microBatch": True}}

    assert explained(on) == "Micro-batches are on, and no replica has been read yet."
    assert explained(on, {"message": "they pay", "measuredAt": NOW}) == "They pay; read 0s ago."
