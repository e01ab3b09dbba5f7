"""Failures that a status reports."""

from tandem_operator.k8s.errors import Forbidden, Overloaded
from tandem_operator.reconcile.failures import REPORT_AFTER, FailureTracker
from tandem_operator.status.facts import Problem


def test_a_permanent_failure_is_reported_at_once() -> None:
    failures = FailureTracker[str]()
    failures.record("a", Forbidden("not allowed"))

    assert failures.reportable("a") == Problem("ApiForbidden", "not allowed")


def test_a_transient_failure_is_reported_when_it_persists() -> None:
    failures = FailureTracker[str]()
    said = []
    for _ in range(REPORT_AFTER):
        failures.record("a", Overloaded("too busy"))
        said.append(failures.reportable("a") is not None)

    assert said == [False] * (REPORT_AFTER - 1) + [True]


def test_it_is_forgotten_when_it_is_over() -> None:
    failures = FailureTracker[str]()
    failures.record("a", Forbidden("not allowed"))
    failures.clear("a")

    assert failures.reportable("a") is None
    assert failures.reportable("b") is None
