"""The alerts of a service with an SLO; pure.

Each target of the SLO has an error budget of its own: 1 − percentile. A joint budget of both would
be no promise of the spec: a service that keeps P90 of TTFT and P90 of TPOT may miss one of the two
in up to 20 % of its requests. A request that failed is a miss of each. The share that meets all
targets at once is recorded, and no alert.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_operator.render import recording_rules as recorded
from tandem_operator.render.promql import BY_SERVICE, Alert, Comparison, Selector

FEWEST_REQUESTS: Final = 20
"""Requests in the long window below which a share of misses says nothing."""

STUCK_PERIODS: Final = 20
"""Periods without a decision after which the autoscaler counts as stuck."""

_MAX_KV_USAGE: Final = 0.95
_MIN_WAITING: Final = 0.1
"""Mean length of a queue."""

_MIN_DIRECTION_CHANGES: Final = 4
_FEWEST_STEPS: Final = 100
"""Steps of an hour below which a gate that is shut says nothing."""

_WAITS_FOR_KV: Final = "~kv_blocks|preemption|swapped_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """A rate at which an error budget of 30 days is used up, over a long and a short window."""

    long: str
    long_s: int
    short: str
    """The long window is missed for long after the cause is gone; this one is not."""

    budget: str
    """Share of the budget of 30 days that the long window takes at this rate."""

    rate: Decimal
    """Multiple of the rate at which the budget lasts for 30 days."""

    most: Decimal
    """Share of misses that suffices in any case. Multiples of a large budget (P90: 10 %) are more
    than all requests, and an alert that waits for them would never fire."""

    severity: Literal["critical", "warning"]

    def threshold(self, target: LatencyTarget) -> Decimal:
        """Return the share of misses above which the alert fires."""
        budget = error_budget(target)
        return max(budget, min(self.rate * budget, self.most)).normalize()


BURNS: Final = (
    Burn(
        long="1h",
        long_s=3600,
        short="5m",
        budget="2 %",
        rate=Decimal("14.4"),
        most=Decimal("0.8"),
        severity="critical",
    ),
    Burn(
        long="6h",
        long_s=6 * 3600,
        short="30m",
        budget="5 %",
        rate=Decimal(6),
        most=Decimal("0.5"),
        severity="critical",
    ),
    Burn(
        long="3d",
        long_s=3 * 86400,
        short="6h",
        budget="10 %",
        rate=Decimal(1),
        most=Decimal(1),
        severity="warning",
    ),
)


def error_budget(target: LatencyTarget) -> Decimal:
    """Return the share of requests that may miss a target."""
    return Decimal(100 - target.percentile) / 100


def burn_alerts(select: Selector, slo: Slo) -> Iterator[Alert]:
    """Yield the alerts about error budgets, for each target and rate."""
    for name, target in recorded.targets(slo).items():
        for burn in BURNS:
            yield _burn_alert(select, name, target, burn)


def _burn_alert(select: Selector, name: str, target: LatencyTarget, burn: Burn) -> Alert:
    threshold = burn.threshold(target)

    def misses(window: str) -> str:
        return select.of_replicas(recorded.MISSES.format(window), target=name)

    requests = select.of_replicas(recorded.REQUESTS.format(burn.long))
    return Alert(
        name="TandemErrorBudgetBurn",
        conditions=(
            Comparison(misses(burn.long), ">", f"{threshold:f}"),
            Comparison(misses(burn.short), ">", f"{threshold:f}"),
            Comparison(
                f"sum {BY_SERVICE} ({requests}) * {burn.long_s}", ">=", str(FEWEST_REQUESTS)
            ),
        ),
        severity=burn.severity,
        labels={"target": name, "window": burn.long},
        summary=f"{select} misses its {name.upper()} target of {target.target}",
        description=(
            f"{{{{ $value | humanizePercentage }}}} of the requests of the last {burn.long} missed "
            f"the {name.upper()} target of {target.target} or failed, and more than "
            f"{_percent(threshold)} % of those of the last {burn.short}; "
            f"P{target.percentile} allows {100 - target.percentile} %. "
            f"Run: tandem explain {select.service} -n {select.namespace}"
        ),
    )


def _percent(share: Decimal) -> str:
    return f"{(100 * share).normalize():f}"


def replica_alerts(select: Selector) -> Iterator[Alert]:
    """Yield the alerts about KV cache, replicas and their metrics."""
    waiting = select.of_replicas(recorded.WAITING, reason=_WAITS_FOR_KV)
    yield Alert(
        name="TandemKvCacheFull",
        conditions=(
            Comparison(select.of_replicas(recorded.KV_USAGE), ">", f"{_MAX_KV_USAGE}"),
            Comparison(f"sum {BY_SERVICE} ({waiting})", ">", f"{_MIN_WAITING}"),
        ),
        lasts="10m",
        severity="warning",
        summary=f"{select} has requests that wait for KV blocks",
        description=(
            "Sequences hold {{ $value | humanizePercentage }} of the KV blocks of the fullest "
            "replica, and requests wait for some, or were preempted, for 10 minutes."
        ),
    )
    yield Alert(
        name="TandemReplicaNotScraped",
        conditions=(Comparison(select.of_replicas("up"), "==", "0"),),
        lasts="5m",
        severity="warning",
        summary=f"{select}: replica {{{{ $labels.pod }}}} is not measured",
        description=(
            "Prometheus cannot scrape the replica {{ $labels.pod }} for 5 minutes. Its requests "
            "are in no figure, and the autoscaler may hold."
        ),
    )
    ready = select.of_replicas(recorded.READY)
    scraped = select.of_replicas(recorded.SCRAPED)
    yield Alert(
        name="TandemReplicaWithoutTarget",
        conditions=(Comparison(ready, ">", f"({scraped} or {ready} * 0)"),),
        lasts="10m",
        severity="warning",
        summary=f"{select} has replicas that Prometheus does not scrape",
        description=(
            "{{ $value }} replicas are ready, and Prometheus scrapes fewer for 10 minutes: a "
            "PodMonitor or a NetworkPolicy does not let it find them."
        ),
    )


def micro_batch_alert(select: Selector) -> Alert:
    """Return the alert about micro-batches that take memory and are not used."""
    state = select.of_replicas("tandem_micro_batch_state")
    steps = select.of_replicas("tandem_step_tokens_count")
    return Alert(
        name="TandemMicroBatchesIdle",
        conditions=(
            Comparison(f"max {BY_SERVICE} ({state})", "==", "0"),
            Comparison(f"sum {BY_SERVICE} (increase({steps}[1h]))", ">=", str(_FEWEST_STEPS)),
        ),
        lasts="6h",
        severity="warning",
        summary=f"{select} pays for micro-batches that are off",
        description=(
            "For 6 hours no replica has cut a step, because too little communication was hidden, "
            "and the buffers of the halves take KV blocks. Set streamOptions.microBatch to false, "
            f"or see why. Run: tandem explain {select.service} -n {select.namespace}"
        ),
    )


def flapping_alert(select: Selector) -> Alert:
    """Return the alert about a number of replicas that goes up and down, in any mode."""
    direction = select.of_replicas(recorded.DIRECTION)
    return Alert(
        name="TandemReplicasFlapping",
        conditions=(Comparison(f"changes({direction}[1h])", ">=", str(_MIN_DIRECTION_CHANGES)),),
        severity="warning",
        summary=f"{select}: the number of replicas goes up and down",
        description=(
            "In the last hour the desired replicas changed their direction {{ $value }} times. "
            f"Run: tandem explain {select.service} -n {select.namespace}"
        ),
    )


def autoscaler_alerts(select: Selector, *, period_s: int) -> Iterator[Alert]:
    """Yield the alerts about decisions, which are due once a period."""
    hold = select.of_operator("tandem_operator_autoscaler_hold")
    decided = select.of_operator("tandem_operator_autoscaler_last_decision_timestamp_seconds")
    own = {"inference_service": select.service}
    yield Alert(
        name="TandemAutoscalerBlind",
        conditions=(Comparison(f"max by (namespace, reason) ({hold})", "==", "1"),),
        lasts="5m",
        labels=own,
        severity="warning",
        summary=f"{select} is not scaled: {{{{ $labels.reason }}}}",
        description=(
            "The autoscaler keeps the number of replicas for 5 minutes, because its metrics cannot "
            f"be trusted. Run: tandem explain {select.service} -n {select.namespace}"
        ),
    )
    yield Alert(
        name="TandemAutoscalerStuck",
        conditions=(
            # Also for an operator that is gone, and its series with it.
            Comparison(
                f"time() - max by (namespace) (max_over_time({decided}[1d]))",
                ">",
                f"{STUCK_PERIODS * period_s}",
            ),
        ),
        labels=own,
        severity="critical",
        summary=f"{select} is not scaled: the autoscaler decides nothing",
        description=(
            "The last decision is {{ $value | humanizeDuration }} old. The operator does not run, "
            "does not lead, or is not scraped."
        ),
    )
