"""What replicas predict under the virtual clock: the formulas of their metrics."""

import pytest

from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.latency.capacity import ReplicaLimits, RequestShape, capacity
from tandem_engine.simulate.observation import SignalWindow, mean_predictions
from tandem_engine.simulate.predictions import FlowPredictor, mix, prices_of
from tandem_engine.simulate.replica import Predictions, ReplicaState
from tandem_engine.simulate.workload import Arrival, Shape
from tests.unit.engine.simulate.fleets import (
    PLAIN,
    SHAPE,
    TPOT,
    TTFT,
    Follows,
    flow,
    flows,
    run,
    scheduler_replica,
)

LIMITS = ReplicaLimits(max_rows=64, max_tokens=256, num_blocks=100, block_size=128)
SLO = Slo(ttft=LatencyTarget(target="1s"), tpot=LatencyTarget(target="100ms"))
LONG = Shape(400, 11)


def shape_of(shape: Shape) -> RequestShape:
    return RequestShape.of(shape.num_input, shape.num_output)


def predictor() -> FlowPredictor:
    shapes = {each: shape_of(each) for each in (SHAPE, LONG)}
    return FlowPredictor(machine=PLAIN, shapes=shapes, limits=LIMITS, slo=SLO)


def state(predictions: Predictions | None) -> ReplicaState:
    return ReplicaState(
        num_running=0.0,
        num_waiting=0.0,
        queue_age_s=0.0,
        kv_usage=0.0,
        busy_s=0.0,
        predictions=predictions,
    )


def test_a_replica_predicts_from_its_sixteenth_answer_on() -> None:
    replica = scheduler_replica()
    for number in range(15):
        replica.submit(Arrival(float(number), SHAPE))
    replica.advance(60.0)
    early = replica.state().predictions
    for number in range(60):
        replica.submit(Arrival(60.0 + number, SHAPE))
    replica.advance(200.0)
    late = replica.state().predictions

    assert early is None
    assert late is not None
    known = capacity(prices_of(PLAIN), shape_of(SHAPE), LIMITS, SLO).requests_per_s
    # It learnt the prices from steps that vary.
    assert late.requests_per_s == pytest.approx(known, rel=0.4)
    assert late.zero_load_tpot_s == pytest.approx(15e-3, rel=0.3)


def test_flows_predict_by_the_price_list_and_the_mix_of_requests() -> None:
    predict = predictor()
    short, long = predict({SHAPE: 10.0}), predict({LONG: 10.0})
    both = predict({SHAPE: 10.0, LONG: 10.0})

    assert predict({}) is None
    assert short is not None
    assert long is not None
    assert both is not None
    assert (
        short.requests_per_s
        == capacity(prices_of(PLAIN), shape_of(SHAPE), LIMITS, SLO, pace=0.95).requests_per_s
    )
    assert long.requests_per_s < both.requests_per_s < short.requests_per_s


def test_a_mix_has_the_mean_lengths_and_their_spread() -> None:
    mixed = mix([(shape_of(Shape(100, 11)), 3.0), (shape_of(Shape(300, 31)), 1.0)])

    assert (mixed.prompt, mixed.output) == (150.0, 16.0)
    assert mixed.spread == pytest.approx((3 * 100**2 + 300**2) / 4 / 150**2)
    # Three times ten decode rows that read about 105.5 tokens, thirty that read 315.5.
    assert mixed.context == pytest.approx((30 * 105.5 + 30 * 315.5) / 60)


def test_the_mean_is_over_the_replicas_that_predict() -> None:
    states = [
        (state(Predictions(2.0, 10.0, 0.1, 0.02)), 3),
        (state(Predictions(4.0, 20.0, 0.3, 0.04)), 1),
        (state(None), 5),
    ]

    assert mean_predictions(states) == pytest.approx((2.5, 12.5, 0.15, 0.025))
    assert mean_predictions(states[2:]) is None


def test_shapes_are_those_of_the_window_and_stay_known() -> None:
    window = SignalWindow(30.0, TTFT, TPOT)
    window.note_arrival(Arrival(0.0, SHAPE), 2.0)
    window.note_arrival(Arrival(20.0, LONG), 1.0)

    assert window.shapes(25.0) == {SHAPE: 2.0, LONG: 1.0}
    assert window.shapes(40.0) == {LONG: 1.0}
    assert window.shapes(100.0) == {LONG: 1.0}


def test_a_fleet_of_flows_shows_their_predictions() -> None:
    controller = Follows(lambda _: 1)
    run(flow(1.0, 60.0), 60.0, controller, make=flows, predict=predictor())

    last = controller.observations[-1]
    assert last.capacity_per_replica == predictor()({SHAPE: 1.0}).requests_per_s  # type: ignore[union-attr]
    assert last.zero_load_ttft_s is not None
