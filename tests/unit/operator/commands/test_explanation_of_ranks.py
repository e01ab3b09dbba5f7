"""The ranks of a replica in an explanation."""

import pytest

from tandem_operator.commands.explanation import explain
from tests.unit.operator.commands.test_explanation import NOW, READY, Object, service, status


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"parallelism": {"worldSize": 4, "pp": 2}}, "; each is a group of 4 ranks"),
        ({"parallelism": {"dp": -1}}, ""),
        ({"parallelism": {"tp": 0}}, ""),
        ({}, ""),
    ],
)
def test_the_ranks_of_a_replica_are_told_where_there_are_several(engine: Object, told: str) -> None:
    found = service(status(READY, ready=1))
    found["spec"]["engine"] = engine

    line = explain(found, None, (), (), NOW)[1]

    assert ("ranks" in line) == bool(told)
    assert told in line
