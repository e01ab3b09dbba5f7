"""One service whose number follows its SLO: what the tests of autoscaling share.

Load comes in bursts. The TTFT target lies between the time that the last request of a small burst
waits in one replica and that of a large one, measured on this machine, so no figure here depends on
its speed.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Any

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.bursts import Bursts
from tests.e2e.kubernetes.prometheus import Prometheus, selector
from tests.e2e.kubernetes.scaled import (
    FEW,
    MAX_REPLICAS,
    TARGET_IN_ANSWERS,
    WINDOW_S,
    ScaledService,
    one_at_a_time,
    slo_between,
)
from tools.cluster.progress import SILENT
from tools.kubernetes import Kubernetes
from tools.up import install_tandem

DOWN_WINDOW_S = 30


@dataclass(frozen=True)
class Case:
    """A service in mode Auto, and the time that one of its answers takes."""

    service: ScaledService
    one_s: float


@dataclass(frozen=True)
class Release:
    """A release of the chart whose operator asks Prometheus."""

    kubernetes: Kubernetes
    values: dict[str, Any]

    def install(self) -> None:
        """Install it, or make it whole again."""
        install_tandem(self.kubernetes, self.values, SILENT)


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


async def calms_down(service: ScaledService, load: Bursts) -> None:
    """Return to one replica, as each test begins."""
    load.size = FEW
    await in_thread(lambda: service.wait_for_desired(lambda n: n == 1, "1"))
    await in_thread(service.wait_settled)


async def in_thread(work: Any) -> None:
    """kubectl waits in a thread, so that the load goes on."""
    await asyncio.to_thread(work)
