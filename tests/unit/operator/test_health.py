"""Liveness problems of the process."""

from typing import Any

import pytest

from tandem_operator.health import HealthSnapshot, liveness_problem

HEALTHY: dict[str, Any] = {
    "loop_lag_s": 0.1,
    "is_leader": True,
    "resync_age_s": 30.0,
    "resync_limit_s": 240.0,
    "watches_behind_s": {"rayservices": 59.0},
}


def test_a_process_that_does_its_work_is_well() -> None:
    assert liveness_problem(HealthSnapshot(**HEALTHY)) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loop_lag_s": 7.0}, "the event loop was blocked for 7 s, more than 5"),
        (
            {"resync_age_s": 300.0},
            "the last resync of all services ended 300 s ago, more than 240",
        ),
        (
            {"watches_behind_s": {"rayservices": 61.0}},
            "the watch of rayservices is 61 s behind LIST, more than 60",
        ),
    ],
)
def test_it_says_what_ails_it(changes: dict[str, Any], sentence: str) -> None:
    assert liveness_problem(HealthSnapshot(**{**HEALTHY, **changes})) == sentence


def test_a_standby_has_no_work_to_be_late_with() -> None:
    standby = {**HEALTHY, "is_leader": False, "resync_age_s": 9999.0}

    assert liveness_problem(HealthSnapshot(**standby)) is None
