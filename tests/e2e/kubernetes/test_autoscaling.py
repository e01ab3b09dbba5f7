"""The number of replicas follows the SLO: real Prometheus, its operator, KubeRay, and requests that
are all counted."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.kubernetes.bursts import bursts
from tests.e2e.kubernetes.prometheus import Prometheus
from tests.e2e.kubernetes.scaled import (
    FEW,
    LARGE,
    SMALL,
    watched,
)
from tests.e2e.kubernetes.scaled_case import Case, holds, in_thread
from tests.e2e.kubernetes.scraped import assert_scraped_by_itself
from tests.figures import Times

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


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
            assert {decision["reason"] for decision in service.decisions} & GROWS
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
