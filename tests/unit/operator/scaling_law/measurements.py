"""Observations, policies and histories for the tests of the autoscaler."""

from dataclasses import replace
from typing import Any, Final

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import LatencySignal, Observation
from tandem_operator.scaling_law.policy import ScalingPolicy

PERIOD_S: Final = 15.0
TTFT_S: Final = 1.5
TPOT_S: Final = 0.08
POLICY: Final = ScalingPolicy(min_replicas=1, max_replicas=8, down_window_s=300.0, max_shrink=0.1)


def ttft(value_s: float, num_samples: int = 100, age_s: float = 5.0) -> LatencySignal:
    return LatencySignal(value_s, TTFT_S, num_samples, age_s)


def tpot(value_s: float, num_samples: int = 100, age_s: float = 5.0) -> LatencySignal:
    return LatencySignal(value_s, TPOT_S, num_samples, age_s)


def observed(replicas: int = 2, **values: Any) -> Observation:
    """Return a service that keeps its targets with `replicas`, each at 70 % of its capacity."""
    usual: dict[str, Any] = {
        "ready": replicas,
        "desired": replicas,
        "ttft": ttft(0.6),
        "tpot": tpot(0.05),
        "queue_age_s": 0.0,
        "arrival_rate": 7.0 * replicas,
        "capacity_per_replica": 10.0,
        "zero_load_ttft_s": 0.3,
        "zero_load_tpot_s": 0.04,
        "kv_usage": 0.5,
    }
    return Observation(**(usual | values))


def idle(replicas: int, **values: Any) -> Observation:
    """Return a service that no request reaches."""
    usual: dict[str, Any] = {
        "ttft": ttft(float("nan"), 0),
        "tpot": tpot(float("nan"), 0),
        "arrival_rate": 0.0,
        "kv_usage": 0.0,
    }
    return observed(replicas, **(usual | values))


class Loop:
    """Observe, decide, record, once a period, for one service."""

    def __init__(self, policy: ScalingPolicy = POLICY, history: History | None = None) -> None:
        self.policy = policy
        self.history = history or History()
        self.now = 1_000_000.0

    def step(self, observation: Observation) -> Decision:
        """Return the decision of one period."""
        decision = decide(observation, self.policy, self.history, self.now)
        self.history = self.history.append(self.now, observation, decision)
        self.now += PERIOD_S
        return decision

    def steps(self, observation: Observation, seconds: float) -> list[Decision]:
        """Return the decisions about a service that takes them over at once."""
        found = []
        for _ in range(int(seconds / PERIOD_S)):
            found.append(self.step(observation))
            grown = found[-1].desired
            observation = replace(observation, desired=grown, ready=grown)
        return found

    def run(self, observation: Observation, seconds: float) -> Decision:
        """Return the first decision that changes the number within `seconds`, else the last."""
        decision = self.step(observation)
        for _ in range(int(seconds / PERIOD_S)):
            if decision.desired != observation.desired:
                break
            decision = self.step(observation)
        return decision
