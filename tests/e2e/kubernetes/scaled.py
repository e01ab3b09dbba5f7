"""A service whose number of replicas follows its SLO, and every number that it has had.

A batch of its engine has one request, so that requests queue at little cost of CPU.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.bursts import bursts
from tests.e2e.kubernetes.harness import (
    NAMESPACE,
    REPLICA_METRICS_PORT,
    DeployedService,
    metrics_of,
    sum_of_metric,
)
from tools.kubernetes import Kubernetes
from tools.up import NAMESPACE as OPERATOR_NAMESPACE

MAX_REPLICAS = 3
FEW, SMALL, LARGE = 2, 4, 12
TARGET_IN_ANSWERS = 6.0
"""The last of a small burst waits for three answers, of a large one for eleven, of half a large one
for five."""
CALIBRATION_S = 30.0
WINDOW_S = 30
SETTINGS = {"periodSeconds": 3, "windowSeconds": WINDOW_S}
"""Settings of the autoscaler: more often than by default, so that the test sees more decisions."""
_DECISIONS = "tandem_operator_autoscaler_decisions_total"
_TTFT = "tandem_time_to_first_token_seconds"
# A line for each change of the object.
_NUMBERS = '{.status.scaling.desiredReplicas} {.status.replicas.ready}{"\\n"}'


@dataclass(frozen=True)
class ScaledService(DeployedService):
    """A service whose number of replicas follows its SLO."""

    @property
    def scaling(self) -> dict[str, Any]:
        """status.scaling."""
        found: dict[str, Any] = self.found.get("status", {}).get("scaling", {})
        return found

    @property
    def desired(self) -> int:
        """The number of replicas in force."""
        return int(self.scaling.get("desiredReplicas", 0))

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The last decisions, newest last."""
        found: list[dict[str, Any]] = self.scaling.get("decisions", [])
        return found

    def wait_for_desired(self, is_right: Any, what: str) -> None:
        wait_for(
            lambda: is_right(self.desired),
            f"the desired replicas of {self.name} are {what}",
            instead=self.told,
        )

    def wait_settled(self) -> None:
        """Wait until all desired replicas are ready, and none is left over."""
        wait_for(
            lambda: self.is_ready() and len(self.pods()) == self.desired,
            f"{self.name} has its desired replicas",
            instead=self.told,
        )

    def wait_for_reason(self, *reasons: str) -> dict[str, Any]:
        """Wait until the newest decision has one of these reasons; return it."""
        wait_for(
            lambda: self._newest().get("reason") in reasons,
            f"{self.name} is decided on with {' or '.join(reasons)}",
            instead=self.told,
        )
        return self._newest()

    def decided(self) -> float:
        """Decisions that the operator's process has made about it; the status tells equal ones
        together."""
        (pod,) = self._operators()
        return sum_of_metric(metrics_of(pod, 8080), _DECISIONS, f'name="{self.name}",')

    def ttft_of_its_replica(self) -> tuple[float, float]:
        """The sum of all TTFT that its one replica has had, and their number."""
        (pod,) = self.pods()
        text = metrics_of(pod, REPLICA_METRICS_PORT)
        return sum_of_metric(text, f"{_TTFT}_sum"), sum_of_metric(text, f"{_TTFT}_count")

    def events(self) -> set[str]:
        """Reasons of its Events."""
        return {
            one["reason"]
            for one in self.kubernetes.list("events")
            if one["involvedObject"]["kind"] == "InferenceService"
            and one["involvedObject"]["name"] == self.name
        }

    def told(self) -> str:
        """The last decisions, for the message of a failed wait."""
        lines = [
            f"{decision['lastTime']} {decision['replicas']} {decision['reason']}: "
            f"{decision.get('message')} {decision.get('inputs')}"
            for decision in self.decisions
        ]
        return "\n".join(["", *lines])

    def _operators(self) -> list[dict[str, Any]]:
        text = self.kubernetes.kubectl(
            *("get", "pods", f"--namespace={OPERATOR_NAMESPACE}", "--output=json"),
            *("--selector=app.kubernetes.io/name=tandem-operator",),
        )
        pods: list[dict[str, Any]] = json.loads(text)["items"]
        return pods

    def _newest(self) -> dict[str, Any]:
        return self.decisions[-1] if self.decisions else {}


def one_at_a_time(document: dict[str, Any]) -> None:
    """Requests queue: a batch has one of them."""
    document["spec"]["engine"]["schedule"]["maxBatchSize"] = 1


def slo_between(one_s: float) -> dict[str, Any]:
    """A TTFT target that one replica keeps for a small burst and misses for a large one."""
    return {"ttft": {"target": f"{TARGET_IN_ANSWERS * one_s * 1000:.0f}ms", "percentile": 90}}


async def seconds_of_one(service: ScaledService) -> float:
    """The time of one answer in a replica: the mean TTFT of a burst is that of half of the others.

    What the engine says is used: a client on a busy machine sees more than the queue.
    """
    sum_before, count_before = service.ttft_of_its_replica()
    async with bursts(service.url, size=LARGE):
        await asyncio.sleep(CALIBRATION_S)
    sum_after, count_after = service.ttft_of_its_replica()
    mean_s = (sum_after - sum_before) / (count_after - count_before)
    return mean_s / ((LARGE - 1) / 2)


@dataclass(frozen=True)
class Numbers:
    """Every pair of desired and ready replicas, in order."""

    output: Path

    def seen(self) -> list[tuple[int, int]]:
        """The pairs so far; a change of either makes one."""
        pairs: list[tuple[int, int]] = []
        for line in self.output.read_text(encoding="utf-8").splitlines():
            desired, _, ready = line.partition(" ")
            pair = (int(desired or 0), int(ready or 0))
            if not pairs or pairs[-1] != pair:
                pairs.append(pair)
        return pairs

    def desired(self) -> list[int]:
        """The numbers that were in force, one after the other."""
        numbers: list[int] = []
        for number, _ in self.seen():
            if number and numbers[-1:] != [number]:
                numbers.append(number)
        return numbers


@contextmanager
def watched(kubernetes: Kubernetes, service: DeployedService, folder: Path) -> Iterator[Numbers]:
    """Write down every number of replicas of a service while the block lasts."""
    output = folder / f"numbers-of-{service.name}"
    command = [
        *(kubernetes.kubectl_path, "get", "isvc", service.name, "--watch"),
        *(f"--namespace={NAMESPACE}", f"--output=jsonpath={_NUMBERS}"),
    ]
    with (
        output.open("wb") as file,
        subprocess.Popen(command, env=dict(kubernetes.environment), stdout=file) as process,
    ):
        try:
            yield Numbers(output)
        finally:
            process.terminate()
