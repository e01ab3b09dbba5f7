"""Series of the latency targets: results of requests, gauges, and predictions at a scrape."""

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import EngineStats
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.async_engine.capacity_question import MeasuredCapacity
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.recent_requests import FEWEST, HALF_LIFE, RecentRequests
from tandem_engine.async_engine.timeline import Timeline
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tests.unit.engine.test_metrics import STATS, samples

BOTH = Slo(
    ttft=LatencyTarget(target="1500ms", percentile=90),
    tpot=LatencyTarget(target="80ms", percentile=95),
)
RESULT = "tandem_slo_requests_total"


def end(metrics: EngineMetrics, *, ttft_s: float, tpot_s: float | None) -> None:
    """End a request with these latencies."""
    # The first token comes at 0, so that both are exact.
    timeline = Timeline(arrived=-ttft_s)
    timeline.token(0.0)
    if tpot_s is not None:
        timeline.token(tpot_s)
    metrics.first_token(timeline)
    metrics.finished(timeline, 10.0, num_prompt=100)


def results(metrics: EngineMetrics) -> dict[str, float]:
    return {key[1]: value for key, value in samples(metrics).items() if key[0] == RESULT and value}


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "result"),
    [
        (1.5, 0.08, "met"),
        (1.5, None, "met"),
        (1.6, 0.05, "ttft"),
        (1.6, None, "ttft"),
        (0.5, 0.09, "tpot"),
        (1.6, 0.09, "both"),
    ],
)
def test_a_request_counts_once_by_all_of_its_targets(
    ttft_s: float, tpot_s: float | None, result: str
) -> None:
    metrics = EngineMetrics("tiny", slo=BOTH)

    end(metrics, ttft_s=ttft_s, tpot_s=tpot_s)

    assert results(metrics) == {result: 1.0}


def test_failed_and_expired_requests_count_as_failed_and_aborted_ones_not_at_all() -> None:
    metrics = EngineMetrics("tiny", slo=BOTH)

    metrics.failed(2)
    metrics.expired()
    metrics.aborted()

    assert results(metrics) == {"failed": 3.0}


def test_all_results_are_there_before_the_first_request() -> None:
    told = samples(EngineMetrics("tiny", slo=BOTH))

    for result in ("met", "ttft", "tpot", "both", "failed"):
        assert told[RESULT, result] == 0.0


def test_without_a_target_there_are_no_such_series() -> None:
    metrics = EngineMetrics("tiny")
    end(metrics, ttft_s=1.0, tpot_s=0.05)

    assert not [key for key in samples(metrics) if key[0].startswith("tandem_slo_")]


def test_a_request_is_judged_by_the_targets_at_its_end_and_counts_never_fall() -> None:
    metrics = EngineMetrics("tiny", slo=BOTH)
    end(metrics, ttft_s=1.6, tpot_s=0.05)

    metrics.reconfigure(ScheduleConfig(), Slo(ttft=LatencyTarget(target="2s")))
    end(metrics, ttft_s=1.6, tpot_s=9.0)
    assert results(metrics) == {"ttft": 1.0, "met": 1.0}


def test_requests_that_end_while_there_is_no_target_are_not_counted() -> None:
    metrics = EngineMetrics("tiny", slo=BOTH)
    end(metrics, ttft_s=1.6, tpot_s=0.05)

    metrics.reconfigure(ScheduleConfig(), Slo())
    end(metrics, ttft_s=0.1, tpot_s=0.01)
    metrics.failed()
    assert results(metrics) == {}

    metrics.reconfigure(ScheduleConfig(), BOTH)
    end(metrics, ttft_s=1.6, tpot_s=9.0)
    assert results(metrics) == {"ttft": 1.0, "both": 1.0}


def test_targets_and_percentiles_are_gauges() -> None:
    told = samples(EngineMetrics("tiny", slo=BOTH))

    assert told["tandem_slo_target_seconds", "ttft"] == 1.5
    assert told["tandem_slo_target_seconds", "tpot"] == 0.08
    assert told["tandem_slo_percentile", "ttft"] == 90.0
    assert told["tandem_slo_percentile", "tpot"] == 95.0
    assert ("tandem_slo_percentile", "tpot") not in samples(
        EngineMetrics("tiny", slo=Slo(ttft=BOTH.ttft))
    )


def test_each_target_is_a_bound_of_its_histograms() -> None:
    slo = Slo(ttft=LatencyTarget(target="1300ms"), tpot=LatencyTarget(target="9ms"))
    metrics = EngineMetrics("tiny", slo=slo)
    end(metrics, ttft_s=1.3, tpot_s=0.009)

    told = samples(metrics)
    assert told["tandem_time_to_first_token_seconds_bucket", "1.3"] == 1.0
    assert ("tandem_request_queue_time_seconds_bucket", "1.3") in told
    # Decimal, not 0.009000000000000001: the label is that of the manifest.
    assert ("tandem_time_per_output_token_seconds_bucket", "0.009") in told
    assert ("tandem_inter_token_latency_seconds_bucket", "0.009") in told
    assert ("tandem_e2e_request_latency_seconds_bucket", "1.3") not in told


def test_the_share_of_a_histogram_below_the_target_is_that_of_the_results() -> None:
    metrics = EngineMetrics("tiny", slo=BOTH)
    for number in range(40):
        end(metrics, ttft_s=0.1 * number, tpot_s=0.004 * number)

    told = samples(metrics)
    kept = results(metrics)
    assert told["tandem_time_to_first_token_seconds_bucket", "1.5"] == kept["met"] + kept.get(
        "tpot", 0.0
    )
    assert told["tandem_time_per_output_token_seconds_bucket", "0.08"] == kept["met"] + kept.get(
        "ttft", 0.0
    )


def test_the_age_of_the_queue_is_asked_for_at_each_scrape() -> None:
    metrics = EngineMetrics("tiny")
    assert samples(metrics)["tandem_queue_age_seconds",] == 0.0

    ages = iter((2.5, 3.5))
    metrics.watch_queue(lambda: next(ages))
    assert samples(metrics)["tandem_queue_age_seconds",] == 2.5
    assert samples(metrics)["tandem_queue_age_seconds",] == 3.5


def serve(metrics: EngineMetrics, *, num_requests: int) -> None:
    for _ in range(num_requests):
        metrics.received(num_prompt=100, num_choices=1)
        metrics.admitted(num_prompt=100, num_cached=0, num_choices=1)
        end(metrics, ttft_s=0.1, tpot_s=0.01)


def test_predictions_need_enough_recent_requests_and_capacity_a_target() -> None:
    stats: EngineStats = STATS
    capacity = ("tandem_predicted_capacity_requests_per_second",)
    concurrency = ("tandem_predicted_capacity_concurrency",)
    zero_load = ("tandem_predicted_zero_load_ttft_seconds",)
    metrics = EngineMetrics("tiny", slo=BOTH)
    metrics.state(stats, prices=StepTimeModel().prices)
    serve(metrics, num_requests=FEWEST - 1)
    assert not {capacity, concurrency, zero_load} & set(samples(metrics))

    serve(metrics, num_requests=1)
    told = samples(metrics)
    assert told[capacity] > 0.0
    assert told[concurrency] > told[capacity] * told[zero_load]
    assert told[zero_load] > told["tandem_predicted_zero_load_tpot_seconds",] > 0.0

    metrics.reconfigure(ScheduleConfig(), Slo())
    assert not {capacity, concurrency} & set(samples(metrics))
    assert zero_load in samples(metrics)


def test_recent_requests_are_means_of_prompts_answers_and_what_is_computed() -> None:
    recent = RecentRequests()
    assert recent.shape() is None
    for _ in range(FEWEST):
        recent.arrived(200, num_choices=1)
        recent.admitted(200, num_cached=50, num_choices=1)
        recent.ended(200, 41)

    shape = recent.shape()
    assert shape is not None
    assert shape.prompt == pytest.approx(200.0)
    assert shape.computed == pytest.approx(150.0)
    assert shape.output == pytest.approx(41.0)
    assert shape.context == pytest.approx(220.5)
    # Tokens 51 to 200 attend to all before them.
    assert shape.pairs == pytest.approx((200.0**2 - 50.0**2) / 2.0)


def test_choices_share_the_prompt_that_is_computed() -> None:
    recent = RecentRequests()
    for _ in range(FEWEST):
        recent.arrived(200, num_choices=4)
        recent.admitted(200, num_cached=0, num_choices=4)
        recent.ended(200, 41)

    shape = recent.shape()
    assert shape is not None
    assert shape.prompt == pytest.approx(200.0)
    assert shape.computed == pytest.approx(50.0)


def test_old_requests_fade() -> None:
    recent = RecentRequests()
    for prompt, number in ((100, 1000), (300, HALF_LIFE)):
        for _ in range(number):
            recent.arrived(prompt, num_choices=1)
            recent.admitted(prompt, num_cached=0, num_choices=1)
            recent.ended(prompt, 10)

    shape = recent.shape()
    assert shape is not None
    assert shape.prompt == pytest.approx(200.0, rel=0.01)


def test_answers_of_one_token_have_a_shape() -> None:
    recent = RecentRequests()
    for _ in range(FEWEST):
        recent.arrived(10, num_choices=1)
        recent.admitted(10, num_cached=0, num_choices=1)
        recent.ended(10, 1)

    shape = recent.shape()
    assert shape is not None
    assert shape.num_decodes == 0.0
    assert shape.context == pytest.approx(10.5)


def load(metrics: EngineMetrics, *, num_requests: int) -> None:
    """Serve requests of 100 tokens that are answered by one, with their timelines."""
    for _ in range(num_requests):
        timeline = Timeline(arrived=-0.1)
        metrics.received(num_prompt=100, num_choices=1, timelines=[timeline])
        metrics.admitted(num_prompt=100, num_cached=0, num_choices=1)
        timeline.token(0.0)
        metrics.finished(timeline, 1.0, num_prompt=100)


def test_a_question_needs_answers_a_ttft_target_and_something_new() -> None:
    metrics = EngineMetrics("tiny", slo=BOTH)
    metrics.state(STATS, prices=StepTimeModel().prices)
    load(metrics, num_requests=FEWEST - 1)
    assert metrics.capacity_question() is None

    load(metrics, num_requests=1)
    question = metrics.capacity_question()
    assert question is not None
    assert question.requests == [(100, 0, 1)] * FEWEST
    assert (question.slo, question.num_blocks) == (BOTH, STATS.num_kv_blocks)
    assert question.guess is None
    assert metrics.capacity_question() is None

    load(metrics, num_requests=1)
    assert metrics.capacity_question() is not None
    metrics.reconfigure(ScheduleConfig(max_batch_size=7), BOTH)
    question = metrics.capacity_question()
    assert question is not None
    assert question.schedule.max_batch_size == 7

    metrics.reconfigure(ScheduleConfig(), Slo(tpot=BOTH.tpot))
    assert metrics.capacity_question() is None


def test_a_measured_capacity_is_shown_until_the_settings_are_others() -> None:
    capacity = ("tandem_predicted_capacity_requests_per_second",)
    metrics = EngineMetrics("tiny", slo=BOTH)
    metrics.state(STATS, prices=StepTimeModel().prices)
    load(metrics, num_requests=FEWEST)
    computed = samples(metrics)[capacity]
    question = metrics.capacity_question()
    assert question is not None
    measured = MeasuredCapacity(requests_per_s=123.0, concurrency=45.0)
    metrics.watch_capacity(lambda: (question, measured))

    told = samples(metrics)
    assert told[capacity] == 123.0
    assert told["tandem_predicted_capacity_concurrency",] == 45.0
    load(metrics, num_requests=1)
    again = metrics.capacity_question()
    assert again is not None
    assert again.guess == 123.0

    metrics.reconfigure(ScheduleConfig(), Slo(ttft=BOTH.ttft))
    assert samples(metrics)[capacity] == pytest.approx(computed, rel=0.5)
    metrics.reconfigure(ScheduleConfig(), BOTH)
    assert samples(metrics)[capacity] == 123.0


def test_no_capacity_at_all_is_shown_as_such_and_searched_from_the_beginning() -> None:
    metrics = EngineMetrics("tiny", slo=BOTH)
    metrics.state(STATS, prices=StepTimeModel().prices)
    load(metrics, num_requests=FEWEST)
    question = metrics.capacity_question()
    assert question is not None
    metrics.watch_capacity(
        lambda: (question, MeasuredCapacity(requests_per_s=0.0, concurrency=0.0))
    )

    assert samples(metrics)["tandem_predicted_capacity_requests_per_second",] == 0.0
    load(metrics, num_requests=1)
    again = metrics.capacity_question()
    assert again is not None
    assert again.guess == pytest.approx(question.guess)
