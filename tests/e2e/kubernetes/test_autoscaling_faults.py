"""The autoscaler under faults: Prometheus, its figures, the operator and single replicas fail."""

import asyncio
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.bursts import bursts
from tests.e2e.kubernetes.faults import replicas_in, stop_replica
from tests.e2e.kubernetes.harness import (
    NAMESPACE,
    OperatorProcess,
)
from tests.e2e.kubernetes.lying_exporter import NAME, LyingExporter
from tests.e2e.kubernetes.prometheus import Prometheus
from tests.e2e.kubernetes.scaled import (
    LARGE,
    SMALL,
    WINDOW_S,
    ScaledService,
    watched,
)
from tests.e2e.kubernetes.scaled_case import (
    Case,
    Release,
    calms_down,
    follows_its_slo,
    holds,
    in_thread,
)
from tests.figures import Times
from tools.cluster import Cluster

AWAY_S = 60.0
HOLDS_FOR_DECISIONS = 3

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


async def test_without_prometheus_it_holds_says_so_and_goes_on(
    case: Case, prometheus: Prometheus, times: Times
) -> None:
    service = case.service
    async with bursts(service.url, size=SMALL) as load:
        await in_thread(lambda: service.wait_for_reason("WithinTargets", "AtMinimum"))
        await in_thread(prometheus.stop)
        try:
            with times.measure("Prometheus is away → ScalingActive is False"):
                await in_thread(lambda: loses_sight(service, "MetricsUnreachable"))
            load.size = LARGE  # which would add a replica
            await in_thread(lambda: stays(service, AWAY_S))
        finally:
            await in_thread(prometheus.start)
        with times.measure("Prometheus is back, with no past → it goes on"):
            await in_thread(lambda: service.wait_for_desired(lambda n: n > 1, "more than 1"))
        assert service.condition("ScalingActive")["status"] == "True"
        await calms_down(service, load)


@pytest.mark.parametrize(
    ("lie", "reasons"),
    [
        ("nan", ("MetricsInvalid", "MetricsMissing")),
        ("stuck", ("MetricsStale", "MetricsDisagree")),
    ],
)
async def test_it_holds_while_metrics_lie(
    case: Case,
    release: Release,
    prometheus: Prometheus,
    times: Times,
    lie: str,
    reasons: tuple[str, ...],
) -> None:
    service = case.service
    # A case before this one may have left a load that adds a replica, for which the first one goes.
    await in_thread(lambda: prometheus.wait_quiet(service, WINDOW_S))
    await in_thread(lambda: service.wait_for_desired(lambda n: n == 1, "1"))
    await in_thread(service.wait_settled)
    exporter = LyingExporter(service.kubernetes, service)
    try:
        async with bursts(service.url, size=SMALL) as load:
            # The fake is scraped, and believed while it tells the truth.
            await in_thread(lambda: prometheus.wait_scraped(service, 1, monitor=NAME))
            await in_thread(lambda: service.wait_for_reason("WithinTargets", "AtMinimum"))
            exporter.tell(lie)
            load.size = LARGE
            with times.measure(f"metrics lie ({lie}) → ScalingActive is False"):
                await in_thread(lambda: loses_sight(service, *reasons))
            await in_thread(lambda: decides_on(service, HOLDS_FOR_DECISIONS, desired=1))
            load.size = SMALL
            exporter.tell("truth")
            with times.measure("… → they tell the truth, and it goes on"):
                await in_thread(lambda: sees_again(service))
    finally:
        exporter.remove()
        release.install()


async def test_the_operator_is_killed_in_the_middle_of_a_decision(
    case: Case,
    operator: OperatorProcess,
    prometheus: Prometheus,
    times: Times,
    tmp_path: Path,
) -> None:
    """Between decision, status and RayService: no step is taken twice, no load is forgotten."""
    service = case.service
    with watched(service.kubernetes, service, tmp_path) as numbers:
        async with bursts(service.url, size=SMALL) as load:
            await in_thread(lambda: service.wait_for_reason("WithinTargets", "AtMinimum"))
            load.size = LARGE
            await in_thread(lambda: service.wait_for_desired(lambda n: n > 1, "more than 1"))
            await in_thread(operator.kill)
            with times.measure("operator killed as it decides → its replica is there"):
                await in_thread(lambda: holds(case, prometheus))
            await calms_down(service, load)
    assert_no_double_step(numbers.seen())
    recalled = re.search(r"Prometheus knows (\d+) loads of the last hour", operator.log())
    assert recalled, operator.log()
    assert int(recalled[1]) > 0


async def test_one_replica_that_hangs_is_replaced_and_adds_none(
    case: Case, cluster: Cluster, times: Times, tmp_path: Path
) -> None:
    """One of two replicas hangs under a load that one carries; its requests are lost."""
    service = case.service
    service.apply(follows_its_slo(case.one_s, min_replicas=2))
    await in_thread(lambda: service.wait_for_desired(lambda n: n == 2, "2"))
    await in_thread(service.wait_settled)
    hung, _ = service.pods()
    before = replicas_in(cluster, service.pods())
    try:
        with watched(service.kubernetes, service, tmp_path) as numbers:
            async with bursts(service.url, size=SMALL, may_fail=True) as load:
                await in_thread(lambda: stop_replica(cluster, hung))
                with times.measure("one of two replicas hangs → another answers in its place"):
                    await in_thread(lambda: is_replaced(service, cluster, before))
                answered = load.answered
                while load.answered < answered + LARGE:
                    await asyncio.sleep(0.1)
        assert {desired for desired, _ in numbers.seen()} == {2}, service.told()
    finally:
        service.apply(follows_its_slo(case.one_s))
        await in_thread(lambda: service.wait_for_desired(lambda n: n == 1, "1"))
        await in_thread(service.wait_settled)


def is_replaced(service: ScaledService, cluster: Cluster, before: set[str]) -> None:
    """Wait until both replicas answer and one of them is another process."""
    wait_for(
        lambda: len(now := replicas_in(cluster, service.pods())) == 2 and bool(now - before),
        f"a replica of {service.name} is another one",
        instead=service.told,
    )
    service.wait_ready()


async def test_a_replica_that_gets_no_pod_is_waited_for_once_and_named(
    case: Case, times: Times
) -> None:
    service = case.service
    pods = service.kubernetes.list("pods")
    service.kubernetes.apply(pods_at_most(len(pods)))
    try:
        async with bursts(service.url, size=SMALL) as load:
            await in_thread(lambda: service.wait_for_reason("WithinTargets", "AtMinimum"))
            load.size = LARGE
            await in_thread(lambda: service.wait_for_desired(lambda n: n > 1, "more than 1"))
            with times.measure("a replica gets no pod → the condition says so"):
                await in_thread(lambda: is_overdue(service))
            service.kubernetes.kubectl("delete", "resourcequota", QUOTA)
            with times.measure("… → there is room again, and all answer"):
                await in_thread(service.wait_settled)
            await calms_down(service, load)
    finally:
        service.kubernetes.kubectl("delete", "resourcequota", QUOTA, "--ignore-not-found")


QUOTA = "no-more-pods"


def pods_at_most(count: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": QUOTA, "namespace": NAMESPACE},
        "spec": {"hard": {"pods": str(count)}},
    }


def is_overdue(service: ScaledService) -> None:
    wait_for(
        lambda: service.condition("CapacityAvailable").get("reason") == "ReplicasOverdue",
        f"{service.name} says that a replica has not come",
        instead=service.told,
    )
    assert "that has no pod" in service.condition("CapacityAvailable")["message"]


def assert_no_double_step(seen: list[tuple[int, int]]) -> None:
    """One replica at a time, and none while another is on its way."""
    for (desired, ready), (after, _) in pairwise(seen):
        assert after <= desired + 1 or desired == 0, seen
        if after > desired > 0:
            assert ready >= desired, f"{after} asked for while {desired} were not ready: {seen}"


def loses_sight(service: ScaledService, *reasons: str) -> None:
    """Wait until condition and Event say why nothing is decided."""

    def has_lost() -> bool:
        condition = service.condition("ScalingActive")
        return condition.get("status") == "False" and condition.get("reason") in reasons

    wait_for(has_lost, f"{service.name} holds for {' or '.join(reasons)}", instead=service.told)
    wait_for(lambda: bool(service.events() & {*reasons}), "an Event says so", timeout_s=60)


def sees_again(service: ScaledService) -> None:
    wait_for(
        lambda: service.condition("ScalingActive").get("status") == "True",
        f"{service.name} is decided on again",
        instead=service.told,
    )


def stays(service: ScaledService, seconds: float) -> None:
    """Check that the number does not change for so long."""
    before, end = service.desired, time.monotonic() + seconds
    while time.monotonic() < end:
        assert service.desired == before, service.told()
        time.sleep(1)


def decides_on(service: ScaledService, count: int, *, desired: int) -> None:
    """Check that the number is held over so many further decisions."""
    # Equal decisions are told as one, now and then; the metric of decisions counts each.
    before = service.decided()
    wait_for(lambda: service.decided() >= before + count, f"{count} decisions", timeout_s=120)
    assert service.desired == desired, service.told()
