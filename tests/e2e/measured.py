"""A service as a Prometheus sees it: its replica, an operator's series, and its rules."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tandem_operator.health import Health, serve
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import Metrics
from tandem_operator.render.prometheus_rules import (
    alerts,
    prometheus_rule,
    recording_rules,
    state_rules,
)
from tandem_operator.render.promql import Comparison
from tandem_operator.render.recording_rules import LONG_WINDOWS, SHORT_WINDOWS
from tandem_operator.scaling_law.decision import DecisionReason
from tandem_serve.api.spec import InferenceService
from tests.e2e.client_load import openai_client, steady_load
from tests.e2e.harness import Service
from tests.patience import HANG_S
from tests.ports import free_port
from tests.prometheus import Prometheus, running
from tests.unit.operator.render.services import SETTINGS, inference_service

NAMESPACE: Final = "models"
SLO: Final = {
    # So far away that the replica can carry load: misses are the requests that exceed a deadline.
    "ttft": {"target": "20s", "percentile": 99},
    "tpot": {"target": "20s", "percentile": 99},
}
_LATE: Final = {"X-Request-Timeout": "0.3"}
_TICK_S: Final = 0.5
_PERIOD_TICKS: Final = 20
_PROMPT: Final = "What is 12 + 30?"


def measured_service(name: str) -> InferenceService:
    """The service as the operator would have it."""
    spec = {"slo": SLO, "scaling": {"mode": "Auto", "maxReplicas": 4}}
    return inference_service(spec, name)


@dataclass(frozen=True, slots=True)
class FakeOperator:
    """An operator's metrics behind its real /metrics, counted as its parts count them.

    It has no Kubernetes, so nothing is reconciled: what is true of it are the names, labels and
    types of its series.
    """

    metrics: Metrics
    key: NamespacedName

    async def run(self, port: int) -> None:
        """Serve and count until cancelled."""
        health = Health(self.metrics)
        health.is_leader = True
        server = await serve(health.application(), port)
        try:
            for tick in itertools.count():
                self._count(tick)
                await asyncio.sleep(_TICK_S)
        finally:
            await server.cleanup()

    def _count(self, tick: int) -> None:
        metrics, key = self.metrics, self.key
        metrics.set_phase(key, "Ready", is_ready=True)
        metrics.reconciles.labels("done").inc()
        metrics.errors.labels("ApiOverloaded").inc(0)
        metrics.duration.observe(0.02)
        metrics.last_reconcile.set_to_current_time()
        metrics.last_resync.set_to_current_time()
        metrics.count_request("get", "rayservices", "200")
        metrics.count_ray_request("200")
        self._decide(tick)

    def _decide(self, tick: int) -> None:
        autoscaler, key = self.metrics.autoscaler, self.key
        periods, since = divmod(tick, _PERIOD_TICKS)
        desired = 1 + periods % 2
        autoscaler.set_replicas(key, desired=desired, ready=1)
        is_blind = since >= _PERIOD_TICKS // 2
        reason = DecisionReason.METRICS_STALE if is_blind else DecisionReason.WITHIN_TARGETS
        if since == 0:
            grows = desired > 1
            reason = DecisionReason.PREDICTED_OVERLOAD if grows else DecisionReason.UNDERUSED
        autoscaler.count_decision(key, reason, recommended=desired, is_problem=is_blind)
        autoscaler.count_query("ok")
        autoscaler.count_cross_check("agrees")
        autoscaler.duration.observe(0.03)


@asynccontextmanager
async def load(service: Service) -> AsyncIterator[None]:
    """Questions, completions and requests with deadlines that they exceed."""
    enough = asyncio.Event()

    async def ask_too_late(http: httpx.AsyncClient) -> None:
        body = {"model": "tandem-tiny", "prompt": _PROMPT, "max_tokens": 200, "ignore_eos": True}
        while not enough.is_set():
            await http.post("/v1/completions", json=body, headers=_LATE)
            await asyncio.sleep(0.05)

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(openai_client(service.url))
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=HANG_S)
        )
        await stack.enter_async_context(steady_load(client, concurrency=12, pause_s=0.0))
        late = asyncio.create_task(ask_too_late(http))
        try:
            yield
        finally:
            enough.set()
            await late


@asynccontextmanager
async def operating(service: Service, port: int) -> AsyncIterator[None]:
    """An operator that is scraped."""
    operator = FakeOperator(Metrics(), NamespacedName(NAMESPACE, service.name))
    task = asyncio.create_task(operator.run(port))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@contextmanager
def scraped(
    service: Service, operator_port: int, binary: Path, folder: Path
) -> Iterator[Prometheus]:
    """A Prometheus with the labels of the chart's monitors, and the rules of the service."""
    rule = prometheus_rule(measured_service(service.name), SETTINGS)
    assert rule is not None
    # The first evaluation of a group comes within its interval, and no test waits for minutes.
    groups = [{"name": group["name"], "rules": group["rules"]} for group in rule["spec"]["groups"]]
    replica = {"namespace": NAMESPACE, "inference_service": service.name, "pod": "tiny-worker-0"}
    scrapes = [
        # One replica, so the endpoint answers for it as its own port would.
        _scrape("replicas", service.port, replica),
        {
            **_scrape("operator", operator_port, {"namespace": "sys", "pod": "operator-0"}),
            "honor_labels": True,
        },
    ]
    with running(
        binary, folder, free_port(), scrapes=scrapes, rules={"groups": groups}
    ) as prometheus:
        yield prometheus


def _scrape(job: str, port: int, labels: dict[str, str]) -> dict[str, Any]:
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": labels}]
    return {"job_name": job, "static_configs": targets}


def rule_expressions(service: InferenceService) -> Iterator[tuple[str, str]]:
    """Each recording rule, and each side of what each alert compares: name and expression."""
    recorded = [*recording_rules(service, (*SHORT_WINDOWS, *LONG_WINDOWS)), *state_rules(service)]
    for rule in recorded:
        yield f"record {rule.record} {dict(rule.labels)}", rule.expr
        yield f"recorded {rule.record} {dict(rule.labels)}", rule.record
    for alert in alerts(service, SETTINGS):
        for condition in alert.conditions:
            yield from _sides(f"alert {alert.name} {dict(alert.labels)}", condition)


def _sides(name: str, condition: Comparison) -> Iterator[tuple[str, str]]:
    yield f"{name}: left of {condition.operator}", condition.left
    yield f"{name}: right of {condition.operator}", condition.right
