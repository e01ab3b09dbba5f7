"""Laws of other autoscalers decide as theirs do: formulas, windows, and their known failures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autoscaling.law_controller import LawController
from benchmarks.autoscaling.laws import LAWS, FleetObservation, Law, llmd_slo
from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import LatencySignal, Observation
from tandem_operator.scaling_law.policy import ScalingPolicy
from tests.unit.operator.scaling_law.queue_model import Run

PERIOD_S: Final = 15.0
POLICY: Final = ScalingPolicy(min_replicas=1, max_replicas=64)


def fleet(replicas: int = 4, **values: Any) -> FleetObservation:
    usual: dict[str, Any] = {
        "ready": replicas,
        "desired": replicas,
        "ttft": LatencySignal(0.7, 1.5, 100, 5.0),
        "tpot": LatencySignal(0.04, 0.08, 100, 5.0),
        "queue_age_s": 0.0,
        "arrival_rate": 10.0,
        "kv_usage": 0.5,
    }
    return FleetObservation(**(usual | values))


def slow(ratio: float, replicas: int = 4, **values: Any) -> FleetObservation:
    """Return a service whose P90 TTFT is `ratio` times its target."""
    signal = LatencySignal(1.5 * ratio, 1.5, 100, 5.0)
    return fleet(replicas, ttft=signal, tpot=None, **values)


def decided(
    law: str | Law,
    observation: FleetObservation,
    *,
    periods: int = 1,
    history: History | None = None,
) -> Decision:
    """Return the last of some decisions about a service whose replicas stay as they are."""
    history, now = history or History(), 10_000.0
    chosen = LAWS[law] if isinstance(law, str) else law
    decision = chosen(observation, POLICY, history, now)
    for _ in range(periods - 1):
        history = history.append(now, observation, decision)
        now += PERIOD_S
        decision = chosen(observation, POLICY, history, now)
    return decision


def number(law: str, observation: FleetObservation, *, periods: int = 1) -> int:
    return decided(law, observation, periods=periods).desired


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        pytest.param(fleet(4, busy=0.96), 5, id="4·0.96/0.8 = 4.8"),
        pytest.param(fleet(4, busy=0.87), 4, id="within 10 %"),
        pytest.param(fleet(4, busy=1.0, starting=4, desired=8), 8, id="those starting count as 0"),
        pytest.param(fleet(4, ready=0, busy=0.0), 4, id="no pod has a metric"),
    ],
)
def test_the_hpa_on_use(observation: FleetObservation, expected: int) -> None:
    assert number("HPA on use", observation) == expected


def test_the_hpa_at_most_doubles_or_adds_four() -> None:
    assert number("KEDA on waiting", fleet(2, num_waiting=500.0)) == 6
    assert number("KEDA on waiting", fleet(8, num_waiting=500.0)) == 16


@pytest.mark.parametrize("law", ["HPA on use", "KEDA on waiting"])
def test_the_hpa_removes_after_five_minutes_as_many_as_are_too_many(law: str) -> None:
    busy = fleet(8, busy=0.8, num_waiting=40.0)
    history = History().append(10_000.0, busy, LAWS[law](busy, POLICY, History(), 10_000.0))
    quiet = fleet(8, busy=0.2, num_waiting=10.0)
    early = LAWS[law](quiet, POLICY, history, 10_300.0)

    assert early.desired == 8
    assert LAWS[law](quiet, POLICY, history, 10_301.0).desired == 2


@pytest.mark.parametrize(
    ("waiting", "expected"), [(0.0, 4), (20.0, 4), (21.9, 4), (22.1, 5), (31.0, 7)]
)
def test_keda_on_waiting(waiting: float, expected: int) -> None:
    """ceil(waiting/5) of 4 replicas, unless it is within 10 % of 20."""
    history = History().append(9_990.0, fleet(4), hold(4))

    assert (
        decided("KEDA on waiting", fleet(4, num_waiting=waiting), history=history).desired
        == expected
    )


def hold(replicas: int) -> Decision:
    return LAWS["AIBrix APA"](fleet(replicas), POLICY, History(), 0.0)


@pytest.mark.parametrize(
    ("running", "waiting", "periods", "expected"),
    [
        (8.0, 0.0, 100, 4),
        (12.0, 9.0, 2, 4),
        (12.0, 9.0, 3, 11),
        (3.0, 0.0, 40, 4),
        (3.0, 0.0, 41, 2),
    ],
)
def test_ray_serve(running: float, waiting: float, periods: int, expected: int) -> None:
    """ceil(ongoing/2) after 30 s up, 600 s down."""
    observation = fleet(4, num_running=running, num_waiting=waiting)

    assert number("Ray Serve", observation, periods=periods) == expected


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        pytest.param(slow(0.50), 4, id="between 0.40 and 0.55"),
        pytest.param(slow(0.80), 6, id="4 + ceil(4·(0.8/0.55 - 1)) = 6"),
        pytest.param(slow(9.00), 8, id="clamped at 2, and an HPA at most doubles"),
        pytest.param(slow(0.80, ready=2), 4, id="credit: 0.8·0.5 is below 0.55"),
        pytest.param(slow(1.60, ready=2), 6, id="4 + ceil(4·(1.6·0.5/0.55 - 1)) = 6"),
    ],
)
def test_llmd_adds_by_its_formula(observation: FleetObservation, expected: int) -> None:
    assert number("llm-d SLO", observation) == expected


def test_llmd_removes_one_every_two_minutes_after_three() -> None:
    quiet = slow(0.1)
    history = History().append(10_000.0, slow(0.5), decided(llmd_slo, slow(0.5)))
    now, numbers = 10_015.0, []
    for _ in range(24):
        decision = llmd_slo(quiet, POLICY, history, now)
        history = history.append(now, quiet, decision)
        quiet = slow(0.1, decision.desired)
        numbers.append((now - 10_000.0, decision.desired))
        now += PERIOD_S

    steps = [
        at for (at, one), (_, before) in zip(numbers[1:], numbers, strict=False) if one < before
    ]
    assert steps == [195.0, 315.0]
    assert decided(llmd_slo, slow(0.1)).recommended == 1


def test_llmd_averages_over_45_seconds() -> None:
    history = History()
    for i, ratio in enumerate((0.4, 0.4)):
        history = history.append(10_000.0 + 15 * i, slow(ratio), decided(llmd_slo, slow(ratio)))

    decision = llmd_slo(slow(1.3), POLICY, history, 10_030.0)
    assert decision.recommended == 4 + 2  # 0.7: 4·(0.7/0.55 - 1) = 1.09


@pytest.mark.parametrize(
    ("kv_usage", "expected"),
    [(0.54, 4), (0.56, 5), (0.8, 7), (1.0, 8), (0.46, 4), (0.3, 3), (0, 2)],
)
def test_aibrix_apa(kv_usage: float, expected: int) -> None:
    """ceil(4·use/0.5), outside of 10 %, at most double or half."""
    assert number("AIBrix APA", fleet(4, kv_usage=kv_usage)) == expected


def test_aibrix_removes_only_after_its_cooldown() -> None:
    law = LAWS["AIBrix APA"]
    full, empty = fleet(2, kv_usage=0.8), fleet(4, kv_usage=0.1)
    history = History().append(0.0, full, law(full, POLICY, History(), 0.0))

    assert law(empty, POLICY, history, 299.0).desired == 4
    assert law(empty, POLICY, history, 300.0).desired == 2


@pytest.mark.parametrize("law", [*LAWS.values(), decide])
@given(
    replicas=st.integers(1, 12),
    waiting=st.floats(0, 1e4),
    use=st.floats(0, 1),
    ratio=st.floats(0, 90),
)
def test_every_law_stays_within_the_bounds(
    law: Law, replicas: int, waiting: float, use: float, ratio: float
) -> None:
    policy = replace(POLICY, min_replicas=2, max_replicas=10)
    load = slow(ratio, replicas, num_waiting=waiting, num_running=waiting, busy=use, kv_usage=use)

    assert 2 <= law(load, policy, History(), 0.0).desired <= 10


def saturated(law: Law) -> Callable[..., Decision]:
    """Return `law` as it sees the queue model: the KV cache and the replicas are full."""

    def see(observation: Observation, *rest: Any) -> Decision:
        values = {name: getattr(observation, name) for name in Observation.__slots__}
        used = min(1.0, (observation.arrival_rate or 0.0) / (10.0 * max(1, observation.ready)))
        full = FleetObservation(**(values | {"kv_usage": used}), busy=used)
        return law(full, *rest)

    return see


def test_apa_cascades_while_replicas_start_and_ours_does_not() -> None:
    """2, 4, 8, 16 while pods load the model: a failure that AIBrix had in production."""

    def load(moment: float) -> float:
        return 8.0 if moment < 600 else 30.0

    policy = ScalingPolicy(min_replicas=2, max_replicas=16)
    apa, ours = (
        Run(load, policy, 2, cold_start_s=300.0, law=saturated(law)).until(900)
        for law in (LAWS["AIBrix APA"], decide)
    )

    assert max(apa.numbers()) == 16
    assert max(ours.numbers()) <= 7


def test_a_controller_keeps_the_history_that_its_law_needs() -> None:
    controller = LawController(
        LAWS["Ray Serve"], POLICY, ttft_target_s=1.5, tpot_target_s=0.08, cold_start_s=60.0
    )
    busy = fleet(4, num_running=12.0, num_waiting=9.0)

    assert [controller.desired(busy, 15.0 * i) for i in range(3)] == [4, 4, 11]
    assert controller.last is not None
    assert controller.last.reason is DecisionReason.PREDICTED_OVERLOAD


def test_a_fleet_without_samples_is_an_idle_one() -> None:
    controller = LawController(
        decide, POLICY, ttft_target_s=1.5, tpot_target_s=0.08, cold_start_s=60.0
    )
    quiet = fleet(1, ttft=None, tpot=None, arrival_rate=0.0, kv_usage=0.0)

    assert controller.desired(quiet, 0.0) == 1
    assert controller.last is not None
    assert controller.last.reason is DecisionReason.NO_TRAFFIC
