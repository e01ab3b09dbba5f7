"""The sample of a replica's load: by arrival, with what still waits or runs."""

from tandem_engine.async_engine.load_sample import LoadSample
from tandem_engine.async_engine.recent_requests import FEWEST
from tandem_engine.async_engine.timeline import Timeline


def timeline(num_tokens: int, *, num_cached: int = 0, has_ended: bool = True) -> Timeline:
    return Timeline(0.0, num_tokens=num_tokens, num_cached=num_cached, has_ended=has_ended)


def test_too_few_ends_are_no_sample() -> None:
    sample = LoadSample()
    sample.arrived(10, [timeline(5) for _ in range(FEWEST - 1)])
    sample.arrived(10, [timeline(5, has_ended=False) for _ in range(FEWEST)])
    assert sample.lengths() == []

    sample.arrived(10, [timeline(5)])
    assert len(sample.lengths()) == 2 * FEWEST


def test_prompts_count_from_their_arrival_and_answers_from_their_end() -> None:
    sample = LoadSample()
    sample.arrived(10, [timeline(5, num_cached=4) for _ in range(FEWEST)])
    waiting = timeline(0, has_ended=False)
    running = timeline(70, has_ended=False)
    sample.arrived(8000, [waiting])
    sample.arrived(9000, [running])

    *short, first, second = sample.lengths()
    assert short == [(10, 4, 5)] * FEWEST
    # As long as another answer, and no shorter than it is already.
    assert (first, second) == ((8000, 0, 5), (9000, 0, 70))

    waiting.num_tokens, waiting.has_ended = 33, True
    assert sample.lengths()[-2] == (8000, 0, 33)


def test_only_the_last_are_kept_and_all_are_counted() -> None:
    sample = LoadSample()
    for number in range(400):
        sample.arrived(number, [timeline(1)])

    assert [lengths.prompt for lengths in sample.lengths()] == list(range(144, 400))
    assert sample.num_arrived == 400
