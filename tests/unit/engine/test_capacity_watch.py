"""The watch of a replica's capacity, with its real process: asked, killed, stopped."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tandem_engine.api.config import EngineConfig, ParallelismConfig
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.async_engine.capacity_question import CapacityQuestion
from tandem_engine.async_engine.capacity_watch import CapacityWatch, watch_capacity
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.simulate.capacity_search import measure_capacity
from tests.patience import HANG_S, until
from tests.unit.engine.simulate.test_capacity_search import QUESTION, seeded


class Questions:
    """Asks what it is given, one after the other, and then nothing."""

    def __init__(self, *questions: CapacityQuestion) -> None:
        self.left = list(questions)

    def __call__(self) -> CapacityQuestion | None:
        return self.left.pop(0) if self.left else None


@contextmanager
def watching(questions: Questions, period_s: float = 0.01) -> Iterator[CapacityWatch]:
    watch = CapacityWatch(questions, period_s=period_s)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
        watch._thread.join(HANG_S)
    assert watch._process is None


async def test_a_question_is_answered_by_the_process() -> None:
    with watching(Questions(QUESTION)) as watch:
        await until(lambda: watch.measured is not None)
        assert watch.measured is not None
        asked, answer = watch.measured

    assert asked is QUESTION
    assert answer.requests_per_s == measure_capacity(QUESTION, seeded).requests_per_s


async def test_a_process_that_is_killed_is_started_again() -> None:
    questions = Questions(QUESTION)
    with watching(questions) as watch:
        await until(lambda: watch.measured is not None)
        process = watch._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait(HANG_S)
        questions.left += [QUESTION]
        watch.hurry()
        await until(lambda: watch.measured is None)
        questions.left += [QUESTION]
        watch.hurry()
        await until(lambda: watch.measured is not None)

        assert watch._process is not process


async def test_it_is_asked_at_once_in_a_hurry_and_else_when_its_time_has_come() -> None:
    questions = Questions(QUESTION)
    with watching(questions, period_s=HANG_S) as watch:
        assert questions.left
        watch.hurry()
        await until(lambda: watch.measured is not None)


async def test_one_that_is_stopped_in_a_measurement_ends() -> None:
    questions = Questions(QUESTION)
    with watching(questions) as watch:
        await until(lambda: not questions.left)

    assert watch.measured is None or watch.measured[0] is QUESTION


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(model_path="m", parallelism=ParallelismConfig(pp=2)),
        EngineConfig(model_path="m", parallelism=ParallelismConfig(dp=2)),
        EngineConfig(model_path="m", speculation=SpeculationConfig(method="ngram")),
    ],
    ids=["pp", "dp", "drafts"],
)
def test_what_the_search_does_not_know_is_not_measured(config: EngineConfig) -> None:
    assert watch_capacity(config, EngineMetrics("tiny")) is None
