"""The number of replicas follows the SLO: real Prometheus, its operator, KubeRay, and requests that
are all counted.

Load comes in bursts. The TTFT target lies between the time that the last request of a small burst
waits in one replica and that of a large one, measured on this machine, so no figure here depends on
its speed.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.bursts import Bursts, bursts
from tests.e2e.kubernetes.faults import replicas_in, stop_replica
from tests.e2e.kubernetes.harness import (
    NAMESPACE,
    OperatorProcess,
)
from tests.e2e.kubernetes.lying_exporter import NAME, LyingExporter
from tests.e2e.kubernetes.prometheus import Prometheus, monitored_values, selector
from tests.e2e.kubernetes.scaled import (
    FEW,
    LARGE,
    MAX_REPLICAS,
    SETTINGS,
    SMALL,
    TARGET_IN_ANSWERS,
    WINDOW_S,
    ScaledService,
    one_at_a_time,
    seconds_of_one,
    slo_between,
    watched,
)
from tests.e2e.kubernetes.scraped import assert_scraped_by_itself
from tests.figures import Times
from tools.cluster import Cluster, monitoring
from tools.cluster.progress import SILENT
from tools.kubernetes import Kubernetes
from tools.up import install_tandem

AWAY_S = 60.0
DOWN_WINDOW_S = 30
HOLDS_FOR_DECISIONS = 3

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


@dataclass(frozen=True)
class Case:
    """A service in mode Auto, and the time that one of its answers takes."""

    service: ScaledService
    one_s: float


def follows_its_slo(one_s: float, min_replicas: int = 1) -> Any:
    def change(document: dict[str, Any]) -> None:
        one_at_a_time(document)
        document["spec"]["slo"] = slo_between(one_s)
        document["spec"]["scaling"] = {
            "mode": "Auto",
            "minReplicas": min_replicas,
            "maxReplicas": MAX_REPLICAS,
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 10, "maxStep": 1},
                "scaleDown": {"stabilizationWindowSeconds": DOWN_WINDOW_S},
            },
        }

    return change


@dataclass(frozen=True)
class Release:
    """A release of the chart whose operator asks Prometheus."""

    kubernetes: Kubernetes
    values: dict[str, Any]

    def install(self) -> None:
        """Install it, or make it whole again."""
        install_tandem(self.kubernetes, self.values, SILENT)


@pytest.fixture(scope="module")
def release(cluster: Cluster, prometheus: Prometheus) -> Release:
    """The release, installed."""
    values = monitored_values(cluster)
    values["settings"]["autoscaling"] = {
        **SETTINGS,
        "prometheus": {"url": monitoring.PROMETHEUS_URL},
    }
    release = Release(prometheus.kubernetes, values)
    release.install()
    return release


@pytest.fixture(scope="module")
def case(release: Release, prometheus: Prometheus, times: Times) -> Iterator[Case]:
    """A service with one replica whose target a small burst keeps and a large one misses."""
    service = ScaledService(release.kubernetes, "scaled")
    service.apply(one_at_a_time)
    service.wait_ready()
    one_s = asyncio.run(seconds_of_one(service))
    times.figures.say(times.section, f"{one_s:8.3f} s  one answer of {service.name}")
    prometheus.wait_scraped(service, 1)
    prometheus.wait_quiet(service, WINDOW_S)
    service.apply(follows_its_slo(one_s))
    service.wait_ready()
    yield Case(service, one_s)
    service.delete()
    service.wait_gone()


async def test_replicas_follow_the_load_and_no_request_is_lost(
    case: Case, prometheus: Prometheus, times: Times, tmp_path: Path
) -> None:
    service = case.service
    with watched(service.kubernetes, service, tmp_path) as numbers:
        async with bursts(service.url, size=SMALL) as load:
            await in_thread(lambda: service.wait_for_reason("WithinTargets", "AtMinimum"))
            assert service.desired == 1, "a small load needs one replica"

            load.size = LARGE
            with times.measure("load is three times as large → a replica more is asked for"):
                await in_thread(lambda: service.wait_for_desired(lambda n: n > 1, "more than 1"))
            assert {one["reason"] for one in service.decisions} & GROWS
            with times.measure("… → it answers, and the target is kept again"):
                await in_thread(lambda: holds(case, prometheus))
            kept = service.desired
            await in_thread(lambda: assert_scraped_by_itself(service, prometheus))

            load.size = FEW
            with times.measure("load falls → one replica is asked for"):
                await in_thread(lambda: service.wait_for_desired(lambda n: n == 1, "1"))
            with times.measure("… → its pods are gone"):
                await in_thread(service.wait_settled)
            times.figures.say(
                times.section,
                f"           {load.sent} requests, {len(load.failures)} failed; {kept} replicas "
                f"held the large load; numbers in force: {numbers.desired()}",
            )
    steps = [after - before for before, after in pairwise(numbers.desired())]
    turns = [pair for pair in pairwise(steps) if pair[0] * pair[1] < 0]
    assert len(turns) == 1, f"it turns once, when the load falls: {numbers.seen()}"


GROWS = {"TTFTAboveTarget", "QueueAgeAboveTarget", "PredictedOverload"}


def holds(case: Case, prometheus: Prometheus) -> None:
    """Wait until all replicas are there, and nine of ten requests have kept the target of late."""
    service, target_s = case.service, round(TARGET_IN_ANSWERS * case.one_s, 3)
    service.wait_settled()
    series = f"tandem_time_to_first_token_seconds_bucket{{{selector(service)}}}"
    measured = f"histogram_quantile(0.9, sum by (le) (rate({series}[{WINDOW_S}s])))"
    wait_for(
        lambda: (prometheus.value(measured) or math.inf) <= target_s,
        f"{service.name} keeps its target of {target_s} s",
        instead=lambda: f"{prometheus.value(measured)} {service.told()}",
    )


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
    """Between decision, status and RayService: no step is taken twice."""
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


async def calms_down(service: ScaledService, load: Bursts) -> None:
    """Return to one replica, as each test begins."""
    load.size = FEW
    await in_thread(lambda: service.wait_for_desired(lambda n: n == 1, "1"))
    await in_thread(service.wait_settled)


async def in_thread(work: Any) -> None:
    """kubectl waits in a thread, so that the load goes on."""
    await asyncio.to_thread(work)
