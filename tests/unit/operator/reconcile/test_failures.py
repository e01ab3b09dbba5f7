"""Failures that a status reports."""

from tandem_operator.k8s.errors import Forbidden, Overloaded
from tandem_operator.reconcile.service_state import REPORT_AFTER, Failures
from tandem_operator.status.facts import Problem


def test_a_permanent_failure_is_reported_at_once() -> None:
    failures = Failures()
    failures.record(Forbidden("not allowed"))

    assert failures.reportable() == Problem("ApiForbidden", "not allowed")


def test_a_transient_failure_is_reported_when_it_persists() -> None:
    failures = Failures()
    said = []
    for _ in range(REPORT_AFTER):
        failures.record(Overloaded("too busy"))
        said.append(failures.reportable() is not None)

    assert said == [False] * (REPORT_AFTER - 1) + [True]


def test_it_is_forgotten_when_it_is_over() -> None:
    failures = Failures()
    failures.record(Forbidden("not allowed"))
    failures.clear()

    assert failures.reportable() is None
    failures.record(Overloaded("too busy"))
    assert failures.reportable() is None, "it counts from the beginning"
