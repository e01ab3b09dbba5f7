"""The measured capacity: what it says is what the same scheduler carries under other arrivals."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from pydantic import TypeAdapter

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.async_engine.capacity_question import (
    CapacityQuestion,
    MeasuredCapacity,
    RequestLengths,
)
from tandem_engine.capacity_process import answers
from tandem_engine.scheduler.latency.step_model import Coefficients
from tandem_engine.simulate import capacity_search
from tandem_engine.simulate.capacity_search import measure_capacity
from tandem_engine.simulate.machines import MACHINES, Noise, NoisyMachine
from tandem_engine.simulate.predictions import prices_of
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.simulator import Simulator
from tandem_engine.simulate.workload import Arrival, Shape

MACHINE = MACHINES["npu"]
SLO = Slo(ttft=LatencyTarget(target="1500ms"), tpot=LatencyTarget(target="80ms"))
SCHEDULE = ScheduleConfig(template_type="Mix", split_fuse=SplitFuseConfig(split_chunk_tokens=2048))
SHORT = RequestLengths(1000, 0, 20)
LONG = RequestLengths(8000, 0, 20)
QUESTION = CapacityQuestion(
    prices=prices_of(MACHINE),
    requests=[SHORT] * 16,
    schedule=SCHEDULE,
    slo=SLO,
    num_blocks=MACHINE.num_blocks,
)


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_search, "NUM_REQUESTS", 96)


def seeded() -> Random:
    return Random(0)


def with_long(num_long: int) -> CapacityQuestion:
    """One hundred requests of which so many have long prompts."""
    return replace(QUESTION, requests=[SHORT] * (100 - num_long) + [LONG] * num_long)


def attained(requests: Sequence[RequestLengths], rate: float) -> float:
    """The share that keeps both targets under other arrivals and other noise."""
    rng = Random(7)
    now, load = 0.0, []
    for _ in range(600):
        now += rng.expovariate(rate)
        drawn = rng.choice(requests)
        load.append(Arrival(now, Shape(drawn.prompt, drawn.output)))
    schedule = SCHEDULE.model_copy(update={"enable_prefix_cache": False})
    machine = NoisyMachine(MACHINE, Noise(), rng)
    replica = SchedulerReplica(schedule, SLO, machine, num_blocks=MACHINE.num_blocks)
    ended = Simulator(replica).run(load).requests
    met = [each.ttft_s <= 1.5 and (each.tpot_s or 0.0) <= 0.08 for each in ended]
    return sum(met) / len(met)


@pytest.mark.parametrize("num_long", [0, 20])
def test_the_targets_are_kept_below_it_and_missed_above(num_long: int) -> None:
    question = with_long(num_long)
    rate = measure_capacity(question, seeded).requests_per_s

    assert attained(question.requests, 0.6 * rate) >= 0.9
    assert attained(question.requests, 1.6 * rate) < 0.9


def test_the_guess_decides_how_long_it_takes_and_not_what_comes_out() -> None:
    rates = [
        measure_capacity(replace(QUESTION, guess=guess), seeded).requests_per_s
        for guess in (None, 0.05, 3.0, 40.0)
    ]

    assert max(rates) <= 1.15 * min(rates)


def test_a_target_that_no_queue_of_a_trial_misses_is_the_rate_at_which_none_grows() -> None:
    patient = Slo(ttft=LatencyTarget(target="600s"))
    rate = measure_capacity(replace(QUESTION, slo=patient), seeded).requests_per_s

    # A prompt of 1,000 tokens takes 0.13 s beside the answers, and a row a tenth of a millisecond.
    assert 3.0 < rate < 8.0


def test_requests_that_are_being_served_follow_from_their_rate() -> None:
    measured = measure_capacity(QUESTION, seeded)

    # A stay is 20 tokens of no more than the target, and a TTFT.
    assert 0.0 < measured.concurrency <= measured.requests_per_s * (20 * 0.08 + 1.5)


def test_more_long_prompts_are_a_lower_capacity() -> None:
    rates = [measure_capacity(with_long(count), seeded).requests_per_s for count in (0, 5, 20)]

    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 5.0


def test_prompts_that_are_cached_are_a_higher_one() -> None:
    cached = replace(QUESTION, requests=[RequestLengths(1000, 900, 20)] * 16)

    assert (
        measure_capacity(cached, seeded).requests_per_s
        > 1.3 * measure_capacity(QUESTION, seeded).requests_per_s
    )


def test_a_cached_prefix_is_read_by_every_step() -> None:
    dear = QUESTION.prices._replace(
        coefficients=QUESTION.prices.coefficients._replace(decode_context=2e-5)
    )
    without = replace(QUESTION, prices=dear, requests=[RequestLengths(100, 0, 20)] * 16)
    cached = replace(without, requests=[RequestLengths(1000, 900, 20)] * 16)

    assert (
        measure_capacity(cached, seeded).requests_per_s
        < measure_capacity(without, seeded).requests_per_s / 2.0
    )


@pytest.mark.parametrize(
    "slo",
    [
        Slo(ttft=LatencyTarget(target="10ms")),
        Slo(ttft=LatencyTarget(target="1500ms"), tpot=LatencyTarget(target="5ms")),
    ],
    ids=["ttft", "tpot"],
)
def test_targets_that_a_single_request_misses_are_no_capacity(slo: Slo) -> None:
    measured = measure_capacity(replace(QUESTION, slo=slo), seeded)

    assert measured == MeasuredCapacity(requests_per_s=0.0, concurrency=0.0)


def test_no_trial_takes_more_steps_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SchedulerReplica] = []

    class Counted(SchedulerReplica):
        def __init__(self, *args: object, **named: object) -> None:
            super().__init__(*args, **named)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(capacity_search, "SchedulerReplica", Counted)
    monkeypatch.setattr(capacity_search, "_MOST_STEPS", 700)
    one_by_one = SCHEDULE.model_copy(update={"max_batch_size": 1})

    measured = measure_capacity(
        replace(
            QUESTION,
            schedule=one_by_one,
            requests=[RequestLengths(100, 0, 40)] * 16,
            guess=0.1,
        ),
        seeded,
    )

    # One after the other, each takes a second, of which some find others before them.
    assert 0.2 < measured.requests_per_s < 1.0
    assert max(replica.num_steps for replica in made) == 700


def test_a_request_that_the_kv_cache_cannot_hold_does_not_wait_for_ever() -> None:
    """A long prompt that still runs has the length of another's answer."""
    narrow = replace(
        QUESTION, num_blocks=10, requests=[SHORT] * 15 + [RequestLengths(1000, 0, 2000)]
    )

    assert measure_capacity(narrow, seeded).requests_per_s > 0.0


def test_steps_that_take_no_time_end_the_search() -> None:
    free = QUESTION.prices._replace(coefficients=Coefficients(0.0, 0.0, 0.0, 0.0, 0.0))

    assert measure_capacity(replace(QUESTION, prices=free), seeded).requests_per_s > 1e3


def test_the_process_answers_line_by_line_and_says_what_it_took() -> None:
    line = TypeAdapter(CapacityQuestion).dump_json(QUESTION)

    first, second = [
        TypeAdapter(MeasuredCapacity).validate_json(answer) for answer in answers([line, line])
    ]

    assert replace(first, cpu_s=0.0) == replace(second, cpu_s=0.0)
    assert replace(first, cpu_s=0.0) == measure_capacity(QUESTION, seeded)
    assert first.cpu_s > 0.0
