"""Prometheus against a replica's own metrics: what may be, and what cannot."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.autoscaler.agreement import compare, next_pod, stuck_sample
from tandem_operator.autoscaler.exposition import Reading, read_exposition
from tandem_operator.autoscaler.signals import PodSample
from tandem_operator.scaling_law.observation import SignalProblem

T = 1_000_000.0
EXPOSITION = b"""# HELP tandem_request_received_total Requests taken.
# TYPE tandem_request_received_total counter
tandem_request_received_total{model_name="tiny"} 42.0
tandem_request_received_totally{model_name="tiny"} 1.0
not_tandem_request_received_total 7.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
tandem_exposition_timestamp_seconds 1.7000001e+09
"""


def reading(received: float, at_s: float, *, started_s: float | None = 1.0) -> Reading:
    return Reading(received=received, exposed_at=at_s, started_at=started_s, read_at=at_s)


def sample(received: float, at_s: float, *, started_s: float | None = 1.0) -> PodSample:
    return PodSample(received=received, scraped_at=at_s, exposed_at=at_s, started_at=started_s)


def problem(one: PodSample, before: Reading | None, after: Reading) -> SignalProblem | None:
    doubt = compare("a", one, before, after)
    return doubt.problem if doubt else None


def test_the_needed_lines_are_read() -> None:
    found = read_exposition(EXPOSITION, T)

    assert found == Reading(received=42.0, exposed_at=1.7000001e9, started_at=1.7e9, read_at=T)


def test_a_text_without_the_counter_is_no_reading() -> None:
    assert read_exposition(b"", T) is None
    assert read_exposition(b"tandem_request_received_total NaN\n", T) is None
    assert read_exposition(b"tandem_request_received_total", T) is None


@given(body=st.binary(max_size=300), at=st.integers(0, 300))
def test_any_text_is_read_or_is_none(body: bytes, at: int) -> None:
    read_exposition(body[:at] + EXPOSITION[: 2 * at] + body[at:], T)


def test_between_two_readings_is_right() -> None:
    before, after = reading(100, T), reading(160, T + 15)

    assert problem(sample(100, T + 10), before, after) is None
    assert problem(sample(130, T + 10), before, after) is None
    assert problem(sample(160, T + 10), before, after) is None


def test_outside_of_them_is_a_lie() -> None:
    before, after = reading(100, T), reading(160, T + 15)

    assert problem(sample(161, T + 10), before, after) is SignalProblem.DISAGREEING
    assert problem(sample(99, T + 10), before, after) is SignalProblem.DISAGREEING
    assert problem(sample(1e9, T + 10), None, after) is SignalProblem.DISAGREEING
    assert problem(sample(float("nan"), T + 10), None, after) is SignalProblem.DISAGREEING


def test_what_was_scraped_before_the_first_reading_has_no_lower_bound() -> None:
    before, after = reading(100, T), reading(160, T + 15)

    assert problem(sample(20, T - 5), before, after) is None
    assert problem(sample(99, T + 1), before, after) is None, "clocks may differ"


def test_a_counter_may_fall_with_its_process() -> None:
    before, after = reading(1000, T, started_s=1.0), reading(3, T + 15, started_s=T + 5)

    assert problem(sample(1010, T + 4, started_s=1.0), before, after) is None
    assert problem(sample(2, T + 10, started_s=T + 5), before, after) is None
    assert problem(sample(4, T + 10, started_s=T + 5), before, after) is SignalProblem.DISAGREEING


def test_a_replica_that_tells_no_start_may_restart_too() -> None:
    before, after = reading(1000, T, started_s=None), reading(3, T + 15, started_s=None)

    assert problem(sample(1010, T + 10, started_s=None), before, after) is None


def test_a_sample_of_a_later_process_is_another_replicas() -> None:
    after = reading(100, T, started_s=1.0)
    doubt = compare("a", sample(5, T - 1, started_s=500.0), None, after)

    assert doubt is not None
    assert doubt.problem is SignalProblem.DISAGREEING
    assert "started earlier" in doubt.message


def test_a_replica_that_shows_the_same_text_is_stuck() -> None:
    before = reading(100, T)
    after = replace(before, read_at=T + 15)

    doubt = compare("a", sample(100, T + 10), before, after)
    assert doubt is not None
    assert doubt.problem is SignalProblem.STALE
    assert "for 15 s" in doubt.message


def test_a_sample_that_was_old_when_it_was_scraped_is_stale() -> None:
    old = PodSample(received=1, scraped_at=T, exposed_at=T - 90)

    doubt = stuck_sample("a", old, 60.0)
    assert doubt is not None
    assert doubt.problem is SignalProblem.STALE
    assert stuck_sample("a", replace(old, exposed_at=T - 1), 60.0) is None
    assert stuck_sample("a", replace(old, exposed_at=None), 60.0) is None


def test_replicas_are_read_one_after_the_other() -> None:
    pods, last, order = ["b", "a", "c"], None, []
    for _ in range(5):
        last = next_pod(pods, last)
        order.append(last)

    assert order == ["a", "b", "c", "a", "b"]
    assert next_pod([], "a") is None
    assert next_pod(["a", "c"], "b") == "c"


@given(
    counts=st.lists(st.integers(0, 50), min_size=3, max_size=20),
    restarts=st.sets(st.integers(0, 19)),
    seen=st.integers(0, 19),
    data=st.data(),
)
def test_an_honest_prometheus_never_disagrees(
    counts: list[int], restarts: set[int], seen: int, data: st.DataObject
) -> None:
    """A replica takes requests and restarts; Prometheus scrapes it between two readings."""
    states, received, started = [], 0.0, 0.0
    for index, count in enumerate(counts):
        at_s = T + 10.0 * index
        if index in restarts:
            received, started = 0.0, at_s
        received += count
        states.append((received, at_s, started))
    first = data.draw(st.integers(0, len(states) - 2))
    last = data.draw(st.integers(first + 1, len(states) - 1))
    at = min(max(seen, 0), last)
    scraped = states[at]
    before = reading(states[first][0], states[first][1], started_s=states[first][2])
    after = reading(states[last][0], states[last][1], started_s=states[last][2])

    found = compare("a", sample(scraped[0], scraped[1], started_s=scraped[2]), before, after)
    assert found is None
