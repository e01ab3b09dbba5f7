"""200 services: that they are all served is tested, what that costs is printed."""

import time

import pytest

from tests.figures import Figures
from tests.integration.operator.conftest import SECTION, StartOperator
from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    manifest,
    measured,
    until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COUNT = 200
RESYNC_S = 10
RESYNCS = {"resyncSeconds": RESYNC_S}
WINDOW_S = 2.0 * RESYNC_S


def test_200_services_are_made_and_then_left_alone(
    namespace: Namespace, start_operator: StartOperator, figures: Figures
) -> None:
    def say(what: str, value: float, unit: str) -> None:
        figures.say(SECTION, f"{COUNT} services: {what}: {value:.1f} {unit}")

    namespace.apply(*(manifest(f"tiny-{number}") for number in range(COUNT)))
    first = start_operator("first", settings=RESYNCS).wait_until_leading()
    began = time.monotonic()
    until(lambda: are_made(first), "all are made")
    say("all made", time.monotonic() - began, "s after leading")
    say("CPU time for that", first.cpu_s(), "s")
    say("memory then", first.resident_bytes() / 2**20, "MiB")
    assert len(namespace.list("rayservices")) == COUNT
    assert first.terminate() == 0

    second = start_operator("second", settings=RESYNCS).wait_until_leading()
    began = time.monotonic()
    until(lambda: second.value("reconcile_total") >= COUNT and second.is_idle(), "a cold start")
    say("a cold start", time.monotonic() - began, "s")
    say("CPU time for that", second.cpu_s(), "s")

    second.wait_for_resyncs()
    writes, versions = second.writes(), namespace.versions()
    reconciles = second.value("reconcile_total")
    say("CPU, idle", 100 * measured(WINDOW_S, second.cpu_s), f"% (resyncs every {RESYNC_S} s)")
    say("memory, idle", second.resident_bytes() / 2**20, "MiB")
    assert second.value("reconcile_total") >= reconciles + COUNT, "all were reconciled again"
    assert second.writes() == writes
    assert namespace.versions() == versions


def are_made(operator: OperatorProcess) -> bool:
    return operator.value("services") == COUNT and operator.is_idle()
