"""A law with the history that it decides from: what a simulated fleet asks once a period."""

import math
from typing import Protocol

from benchmarks.autoscaling.laws import FleetObservation, Law
from tandem_operator.scaling_law.decision import Decision
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import LatencySignal
from tandem_operator.scaling_law.policy import ScalingPolicy


class Latency(Protocol):
    """A latency as the fleet has it."""

    @property
    def value_s(self) -> float: ...  # noqa: D102
    @property
    def num_samples(self) -> int: ...  # noqa: D102


class FleetSignals(Protocol):
    """A fleet as the simulator shows it."""

    @property
    def ttft(self) -> Latency | None: ...  # noqa: D102
    @property
    def tpot(self) -> Latency | None: ...  # noqa: D102
    @property
    def queue_age_s(self) -> float | None: ...  # noqa: D102
    @property
    def arrival_rate(self) -> float | None: ...  # noqa: D102
    @property
    def capacity_per_replica(self) -> float | None: ...  # noqa: D102
    @property
    def concurrency_per_replica(self) -> float | None: ...  # noqa: D102
    @property
    def zero_load_ttft_s(self) -> float | None: ...  # noqa: D102
    @property
    def zero_load_tpot_s(self) -> float | None: ...  # noqa: D102
    @property
    def kv_usage(self) -> float | None: ...  # noqa: D102
    @property
    def ready(self) -> int: ...  # noqa: D102
    @property
    def desired(self) -> int: ...  # noqa: D102
    @property
    def starting(self) -> int: ...  # noqa: D102
    @property
    def room(self) -> int | None: ...  # noqa: D102
    @property
    def num_running(self) -> float: ...  # noqa: D102
    @property
    def num_waiting(self) -> float: ...  # noqa: D102
    @property
    def busy(self) -> float: ...  # noqa: D102


class LawController:
    """Asks a law, and keeps its decisions.

    Args:
        law: Decides.
        policy: Bounds, and for our own law windows and margins.
        ttft_target_s: Seconds.
        tpot_target_s: Seconds.
        cold_start_s: Measured cold start.
    """

    def __init__(
        self,
        law: Law,
        policy: ScalingPolicy,
        *,
        ttft_target_s: float,
        tpot_target_s: float,
        cold_start_s: float,
    ) -> None:
        self._law = law
        self._policy = policy
        self._ttft_target_s = ttft_target_s
        self._tpot_target_s = tpot_target_s
        self._history = History().with_cold_start(cold_start_s)
        self._last: Decision | None = None

    @property
    def last(self) -> Decision | None:
        """The newest decision."""
        return self._last

    def desired(self, observation: FleetSignals, now: float) -> int:
        """Return the number of replicas at `now`, in seconds."""
        observed = self._observed(observation)
        decision = self._law(observed, self._policy, self._history, now)
        self._history = self._history.append(now, observed, decision)
        self._last = decision
        return decision.desired

    def _observed(self, fleet: FleetSignals) -> FleetObservation:
        return FleetObservation(
            ready=fleet.ready,
            starting=fleet.starting,
            desired=fleet.desired,
            ttft=_signal(fleet.ttft, self._ttft_target_s),
            tpot=_signal(fleet.tpot, self._tpot_target_s),
            queue_age_s=fleet.queue_age_s,
            arrival_rate=fleet.arrival_rate,
            capacity_per_replica=fleet.capacity_per_replica,
            ongoing_requests=fleet.num_running + fleet.num_waiting,
            concurrency_per_replica=fleet.concurrency_per_replica,
            zero_load_ttft_s=fleet.zero_load_ttft_s,
            zero_load_tpot_s=fleet.zero_load_tpot_s,
            kv_usage=fleet.kv_usage,
            room=fleet.room,
            num_running=fleet.num_running,
            num_waiting=fleet.num_waiting,
            busy=fleet.busy,
        )


def _signal(latency: Latency | None, target_s: float) -> LatencySignal:
    """Return a latency that was scraped now; without a sample, as an idle service has it."""
    if latency is None:
        return LatencySignal(math.nan, target_s, 0, 0.0)
    return LatencySignal(latency.value_s, target_s, latency.num_samples, 0.0)
