"""Timelines of real steps: of two ranks in processes of their own, and of one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from itertools import chain
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.timeline import RankStep, Timeline
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_serve.api.trace_events import trace_events
from tests.integration.forced_cuts import forced_cuts, no_cuts
from tests.integration.test_micro_batch_engine import start
from tests.integration.test_rank_engine import answers
from tests.patience import HANG_S
from tests.tiny import TINY

NUM_STEPS = 6
NUM_LAYERS = 4

Recorded = TypeVar("Recorded")
Said = list[tuple[int, ...]]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_ranks() -> AsyncIterator[AsyncEngine]:
    engine = start([])
    yield engine
    await engine.stop()


async def recorded(engine: AsyncEngine, num_steps: int = NUM_STEPS) -> Timeline:
    """A timeline of steps that answer requests."""
    return await with_answers(engine, engine.timeline(num_steps, within_s=HANG_S))


async def with_answers(
    engine: AsyncEngine, recording: Awaitable[Recorded], expected: Said | None = None
) -> Recorded:
    """Have the engine compute steps until all are recorded: answers alone may be too early."""
    recorded = asyncio.ensure_future(recording)
    while not recorded.done():
        said = await answers(engine, "asked")
        assert expected is None or said == expected
    return await recorded


def num_of(step: RankStep, kind: str, half: int | None) -> int:
    return sum(one.kind == kind and one.half == half for one in step.slices)


async def test_all_ranks_record_the_same_steps(two_ranks: AsyncEngine) -> None:
    with forced_cuts():
        timeline = await recorded(two_ranks)

    assert [(one.number, one.rank) for one in timeline.steps] == [
        (number, rank) for number in range(NUM_STEPS) for rank in (0, 1)
    ]
    for first, second in zip(timeline.steps[::2], timeline.steps[1::2], strict=True):
        assert (first.num_rows, first.num_tokens) == (second.num_rows, second.num_tokens)
        assert first.halves == second.halves
        assert [one.name for one in first.slices] == [one.name for one in second.slices]
    assert any(one.halves for one in timeline.steps)


async def test_a_cut_step_has_a_slice_for_each_stage_and_collective_of_both_halves(
    two_ranks: AsyncEngine,
) -> None:
    with forced_cuts():
        timeline = await recorded(two_ranks)

    cut = [one for one in timeline.steps if one.halves]
    for step in cut:
        for half in (0, 1):
            num_collectives = num_of(step, "collective", half)
            assert num_of(step, "stage", half) == num_collectives + 1
            # The embedding, two of each layer, and logits. A half that yields no token ends with
            # the keys and values of the last layer.
            num_others = 2 if has_logits(step, half) else -1
            assert num_collectives == 2 * NUM_LAYERS + num_others
        assert {one.stream for one in step.slices} == {"compute", "communication"}
        assert sum(half.num_tokens for half in step.halves) == step.num_tokens
        for one in step.slices:
            assert step.begin_s <= one.begin_s <= one.end_s <= step.end_s
            assert all(step.slices[place].end_s <= one.begin_s for place in one.after)
        assert any(one.after for one in step.slices)


def has_logits(step: RankStep, half: int) -> bool:
    return any(one.name == "logits" for one in step.slices if one.half == half)


async def test_a_whole_step_has_one_stream_and_says_why(two_ranks: AsyncEngine) -> None:
    with no_cuts():
        timeline = await recorded(two_ranks)

    assert {one.whole_because for one in timeline.steps} == {"off"}
    for step in timeline.steps:
        assert {one.stream for one in step.slices} == {"compute"}
        assert num_of(step, "stage", None) == num_of(step, "collective", None) + 1


async def test_answers_are_the_same_while_steps_are_recorded(two_ranks: AsyncEngine) -> None:
    plain = await answers(two_ranks, "plain")

    await with_answers(two_ranks, two_ranks.timeline(NUM_STEPS, within_s=HANG_S), expected=plain)


async def test_a_timeline_of_an_idle_engine_ends_in_time_and_is_empty(
    two_ranks: AsyncEngine,
) -> None:
    assert (await two_ranks.timeline(3, within_s=0.05)).steps == ()
    assert await answers(two_ranks, "later")


async def test_a_caller_that_goes_away_ends_its_recording(two_ranks: AsyncEngine) -> None:
    waiting = asyncio.create_task(two_ranks.timeline(500, within_s=HANG_S))
    await answers(two_ranks, "meanwhile")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert len((await recorded(two_ranks, 2)).steps) == 4


async def test_a_second_caller_waits_for_the_first_one(two_ranks: AsyncEngine) -> None:
    recordings = [two_ranks.timeline(num_steps, within_s=HANG_S) for num_steps in (2, 3)]
    first, second = await with_answers(two_ranks, asyncio.gather(*recordings))

    assert (len(first.steps), len(second.steps)) == (4, 6)


async def test_a_recording_ends_when_the_engine_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start([])
    executor, has_begun = engine._recordings._executor, threading.Event()
    begin = executor.begin_recording

    def note(*given: Any) -> None:
        begin(*given)
        has_begun.set()

    monkeypatch.setattr(executor, "begin_recording", note)
    waiting = asyncio.create_task(engine.timeline(500, within_s=HANG_S))
    assert await asyncio.to_thread(has_begun.wait, HANG_S)
    await answers(engine, "asked")

    await asyncio.wait_for(engine.stop(), HANG_S)

    assert (await waiting).steps


async def test_a_rank_that_is_alone_records_whole_steps() -> None:
    config = EngineConfig(
        model_path=str(TINY), num_kv_blocks=400, schedule=ScheduleConfig(cache_block_size=16)
    )
    engine = build_engine(config)
    try:
        timeline = await recorded(engine)
    finally:
        await engine.stop()

    assert len(timeline.steps) == NUM_STEPS
    for step in timeline.steps:
        assert [one.name for one in step.slices] == ["all layers"]
        assert step.whole_because is None


async def test_the_trace_of_real_steps_has_all_their_slices(two_ranks: AsyncEngine) -> None:
    with forced_cuts():
        timeline = await recorded(two_ranks)

    events = list(chain.from_iterable(trace_events(timeline)))

    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(timeline.steps) + sum(len(one.slices) for one in timeline.steps)
    begins = {event["id"] for event in events if event["ph"] == "s"}
    ends = {event["id"] for event in events if event["ph"] == "f"}
    assert begins == ends != set()
