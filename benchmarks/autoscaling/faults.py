"""Faults of single replicas and of what is measured of them, for the closed loop.

Under a fault the operator's own code reads the fleet: a replica's gauges become the series that
Prometheus has, `measure` makes an observation of them, and `decide` decides. What a fault changes
is the fleet, or those series, never the observation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.fleet import FleetSettings
from tandem_engine.simulate.observation import FleetObservation, LatencySignal, ReplicaView
from tandem_operator.autoscaler.agreement import Doubt
from tandem_operator.autoscaler.current_policy import CREDIT
from tandem_operator.autoscaler.document import ExplainedDecision
from tandem_operator.autoscaler.measure import Measured, Replica, Targets, measure, unmeasured
from tandem_operator.autoscaler.signals import PodSample, Signals
from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import SignalProblem
from tandem_operator.scaling_law.policy import ScalingPolicy

NONE: Final = "none"
BEGIN_S: Final = 600.0
"""When a fault begins."""

_EVERY_S: Final = 900.0
_AWAY_S: Final = 60.0
_MAX_AGE_S: Final = 60.0
_SLOTS: Final = 12
_STEPS: Final = 1000.0
"""Steps in a window of a replica that computes: only none matters."""

Distort = Callable[[Signals, float], Signals | None]
"""Returns the series that Prometheus has under the fault, of those that it would have at a moment;
None: Prometheus cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A change of the fleet, or of the series that Prometheus has of it."""

    meaning: str
    distort: Distort = lambda signals, _: signals
    hangs_s: Sequence[float] = ()
    lost_starts: int = 0
    slots: int | None = None
    """As of FleetSettings, all three."""


def _first(signals: Signals, now: float, **values: float | None) -> Signals:
    """Return the series with other figures of one replica, once the fault has begun."""
    if now < BEGIN_S or not signals.pods:
        return signals
    pod = min(signals.pods)
    sick = replace(signals.pods[pod], **values)  # type: ignore[arg-type]  # fields of PodSample
    return replace(signals, pods={**signals.pods, pod: sick})


def _blind(signals: Signals, now: float) -> Signals:
    if now < BEGIN_S or not signals.pods:
        return signals
    blind = min(signals.pods)
    return replace(signals, pods={pod: each for pod, each in signals.pods.items() if pod != blind})


def _restarted(signals: Signals, now: float) -> Signals | None:
    """Return no answer for a while, then figures without a rate until the second scrape."""
    since_s = now % _EVERY_S
    if now < BEGIN_S or since_s > _AWAY_S + 30.0:
        return signals
    if since_s <= _AWAY_S:
        return None
    pods = {
        pod: replace(each, arrival_rate=None, steps=None, refused_rate=None, exposures=None)
        for pod, each in signals.pods.items()
    }
    return replace(signals, values={}, pods=pods)


def _reset(signals: Signals, now: float) -> Signals:
    """Return the rates without what came between the last scrape and a restart of the counters."""
    if now < BEGIN_S or now % _EVERY_S > _AWAY_S:
        return signals
    pods = {
        pod: replace(each, received=0.0, arrival_rate=0.75 * (each.arrival_rate or 0.0))
        for pod, each in signals.pods.items()
    }
    return replace(signals, pods=pods)


FAULTS: Final[Mapping[str, Fault]] = {
    NONE: Fault(meaning="nothing is wrong"),
    "sick": Fault(
        meaning="a replica hangs: it takes requests and computes none",
        hangs_s=(BEGIN_S,),
    ),
    "blind": Fault(meaning="a replica is not scraped", distort=_blind),
    "never": Fault(meaning="the first replica that is added never answers", lost_starts=1),
    "refused": Fault(
        meaning=f"a replica takes {_SLOTS} requests at once and refuses more",
        slots=_SLOTS,
    ),
    "reset": Fault(meaning="the counters of all replicas begin again", distort=_reset),
    "restart": Fault(meaning="Prometheus is away, and back without a past", distort=_restarted),
    "nan": Fault(
        meaning="a replica has figures that are no numbers",
        distort=lambda signals, now: _first(signals, now, queue_age_s=math.nan, kv_usage=math.nan),
    ),
    "clock": Fault(
        meaning="a replica's clock is behind by more than a minute",
        distort=lambda signals, now: _first(
            signals, now, exposed_at=signals.evaluated_at - _MAX_AGE_S - 11.0, exposures=4.0
        ),
    ),
}


def check_fault(name: str) -> None:
    """Raise for a name that no fault has.

    Raises:
        WrongUsage: there is none of that name.
    """
    if name not in FAULTS:
        raise WrongUsage(f"--fault is '{name}'; it must be one of {', '.join(FAULTS)}.")


def with_fault(settings: FleetSettings, name: str) -> FleetSettings:
    """Return the settings of a fleet that has the fault."""
    fault = FAULTS[name]
    return replace(
        settings, hangs_s=fault.hangs_s, lost_starts=fault.lost_starts, slots=fault.slots
    )


class MeasuringController:
    """The operator's loop: series, what is measured of them, decision, in words.

    Args:
        policy: Bounds, windows and margins.
        targets: Of the SLO.
        fault: The change of the series.
        cold_start_s: Measured cold start.
        window_s: Window of the series.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        targets: Targets,
        fault: Fault,
        *,
        cold_start_s: float,
        window_s: float,
    ) -> None:
        self._policy = policy
        self._targets = targets
        self._fault = fault
        self._history = History().with_cold_start(cold_start_s)
        self._window_s = window_s
        self._busy: dict[int, list[tuple[float, float, float]]] = {}
        self.explained: list[ExplainedDecision] = []
        """The decisions, explained."""

    @property
    def last(self) -> Decision | None:
        """The newest decision."""
        return self.explained[-1].decision if self.explained else None

    def desired(self, observation: FleetObservation, now: float) -> int:
        """Return the number of replicas at `now`, in seconds."""
        measured = self._measured(observation, now).with_overdue(self._overdue(observation, now))
        seen = measured.observation
        decision = decide(seen, self._policy, self._history, now)
        self._history = self._history.append(now, seen, decision)
        self.explained.append(
            ExplainedDecision(
                decision=decision,
                observation=seen,
                note=measured.note,
                remarks=measured.remarks,
            )
        )
        return decision.desired

    def _overdue(self, fleet: FleetObservation, now: float) -> list[str]:
        credit_s = CREDIT * self._history.cold_start_s
        late = [size for began_s, size in fleet.starts if now - began_s > credit_s]
        return [f"new-{number}" for number in range(sum(late))]

    def _measured(self, fleet: FleetObservation, now: float) -> Measured:
        ready = [Replica(pod, is_ready=True, is_fresh=False) for pod in _pods(fleet.replicas)]
        starting = [
            Replica(f"new-{number}", is_ready=False, is_fresh=False)
            for number in range(fleet.starting)
        ]
        replicas = [*ready, *starting]
        signals = self._fault.distort(self._signals(fleet, now), now)
        if signals is None:
            doubt = Doubt(SignalProblem.UNREACHABLE, "Prometheus gives no answer")
            return unmeasured(doubt, replicas, fleet.desired)
        return measure(
            signals,
            self._targets,
            replicas,
            fleet.desired,
            max_age_s=_MAX_AGE_S,
            slots=self._fault.slots,
        )

    def _signals(self, fleet: FleetObservation, now: float) -> Signals:
        pods: dict[str, PodSample] = {}
        for view in fleet.replicas:
            sample = self._sample(view, fleet, now)
            pods |= dict.fromkeys(_pods([view]), sample)
        return Signals(
            values={**_latency("ttft", fleet.ttft), **_latency("tpot", fleet.tpot)},
            pods=pods,
            evaluated_at=now,
        )

    def _sample(self, view: ReplicaView, fleet: FleetObservation, now: float) -> PodSample:
        state, ready = view.state, max(fleet.ready, 1)
        seen = self._busy.setdefault(view.number, [])
        seen.append((now, state.busy_s, state.num_running))
        seen[:] = [moment for moment in seen if now - moment[0] <= self._window_s]
        is_whole = now - seen[0][0] >= self._window_s - _MAX_AGE_S / 4
        # Flows that come together share their seconds, so the counter may fall.
        computes = any(later[1] > earlier[1] for earlier, later in pairwise(seen))
        # Arrivals are spread evenly, as the router does it.
        return PodSample(
            received=1.0,
            scraped_at=now,
            exposed_at=now,
            exposures=4.0,
            arrival_rate=max(fleet.arrival_rate - fleet.refused_rate, 0.0) / ready,
            refused_rate=fleet.refused_rate / ready,
            queue_age_s=state.queue_age_s,
            ongoing_requests=state.num_running + state.num_waiting,
            least_running=min(running for _, _, running in seen),
            steps=(_STEPS if computes else 0.0) if is_whole else None,
            kv_usage=state.kv_usage,
            capacity=fleet.capacity_per_replica,
            concurrency=fleet.concurrency_per_replica,
            zero_load_ttft_s=fleet.zero_load_ttft_s,
            zero_load_tpot_s=fleet.zero_load_tpot_s,
        )


def _pods(views: Sequence[ReplicaView]) -> list[str]:
    return [f"replica-{view.number}-{index}" for view in views for index in range(view.size)]


def _latency(name: str, signal: LatencySignal | None) -> dict[str, float]:
    value = math.nan if signal is None else signal.value_s
    samples = 0 if signal is None else signal.num_samples
    return {f"{name}_s": value, f"{name}_samples": float(samples)}
