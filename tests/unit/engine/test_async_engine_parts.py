"""Streams, timelines and metrics of AsyncEngine, without a model."""

import asyncio
from dataclasses import replace

import pytest

from tandem_engine.api.errors import RequestFailed
from tandem_engine.api.output import EngineStats, Output, PromptLogprobs, TokenLogprob
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.stream import BestOfStream, RequestStream
from tandem_engine.async_engine.timeline import Timeline


def piece(text: str, index: int = 0, *, last: bool = False, logprob: float = 0.0) -> Output:
    return Output(
        index=index,
        text=text,
        token_ids=(ord(text[0]),),
        logprobs=(TokenLogprob(ord(text[0]), logprob),),
        finish_reason="length" if last else None,
    )


class Aborts:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def test_a_slow_reader_gets_what_it_missed_in_one_output() -> None:
    stream = RequestStream(1, Aborts())
    for text in ("a", "b", "c"):
        stream.feed(piece(text))
    first = await anext(stream)
    stream.feed(piece("d", last=True))

    assert (first.text, first.token_ids) == ("abc", (97, 98, 99))
    assert [output.text async for output in stream] == ["d"]


async def test_log_probabilities_of_the_prompt_stay_where_outputs_are_merged() -> None:
    prompt = PromptLogprobs(
        token_ids=(1,), logprobs=[-1.0], ranks=[2], num_top=0, top_ids=[], top_logprobs=[]
    )
    stream = RequestStream(1, Aborts())
    stream.feed(replace(piece("a"), prompt_logprobs=prompt))
    stream.feed(piece("b", last=True))

    assert [output.prompt_logprobs async for output in stream] == [prompt]


async def test_choices_keep_their_order_and_their_own_text() -> None:
    stream = RequestStream(2, Aborts())
    for output in (
        piece("a", 0),
        piece("x", 1),
        piece("b", 0, last=True),
        piece("y", 1, last=True),
    ):
        stream.feed(output)

    assert [(output.index, output.text) async for output in stream] == [(0, "ab"), (1, "xy")]


async def test_an_abort_happens_once_and_ends_a_waiting_reader() -> None:
    aborts = Aborts()
    stream = RequestStream(1, aborts)
    reader = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    stream.abort()
    stream.abort()

    assert await reader is None
    assert aborts.count == 1


async def test_a_failed_choice_ends_the_request_after_what_it_had_said() -> None:
    aborts = Aborts()
    stream = RequestStream(2, aborts)
    stream.feed(piece("a"))
    stream.fail(RequestFailed("no kernel"))
    stream.feed(piece("late"))

    assert (await anext(stream)).text == "a"
    with pytest.raises(RequestFailed, match="no kernel"):
        await anext(stream)
    assert aborts.count == 1, "the other choice is given up too"


async def test_nothing_is_aborted_after_the_end() -> None:
    aborts = Aborts()
    stream = RequestStream(1, aborts)
    stream.feed(piece("a", last=True))
    stream.abort()

    assert aborts.count == 0
    assert [output.text async for output in stream] == ["a"]


async def test_best_of_ranks_by_mean_logprob() -> None:
    inner = RequestStream(3, Aborts())
    for index, logprob in ((0, -2.0), (1, -0.5), (2, -1.0)):
        inner.feed(piece("abc"[index], index, last=True, logprob=logprob))
    best = BestOfStream(inner, num_best=2, with_logprobs=False)
    outputs = [output async for output in best]

    assert [(output.index, output.text) for output in outputs] == [(0, "b"), (1, "c")]
    assert all(output.logprobs == () for output in outputs)


def test_latencies_are_differences_of_moments() -> None:
    timeline = Timeline(arrived=10.0)
    timeline.scheduled = 10.5
    gaps = [timeline.token(now) for now in (11.0, 11.2, 11.6)]

    assert gaps == [None, pytest.approx(0.2), pytest.approx(0.4)]
    assert timeline.queue_time == 0.5
    assert timeline.ttft == 1.0
    assert timeline.tpot == pytest.approx(0.3)


def test_one_token_has_no_time_per_output_token() -> None:
    timeline = Timeline(arrived=0.0)
    timeline.token(1.0)

    assert timeline.tpot is None


def test_metrics_tell_queues_cache_and_preemptions() -> None:
    metrics = EngineMetrics("tiny")
    for num_preemptions in (2, 5):
        metrics.state(
            EngineStats(
                num_running=3,
                num_waiting=4,
                num_kv_blocks=8,
                num_free_kv_blocks=2,
                num_preemptions=num_preemptions,
            )
        )
    text = metrics.text().decode()

    for line in (
        'tandem_num_requests_running{model_name="tiny"} 3.0',
        'tandem_num_requests_waiting{model_name="tiny"} 4.0',
        'tandem_kv_cache_usage_ratio{model_name="tiny"} 0.75',
        'tandem_num_preemptions_total{model_name="tiny"} 5.0',
    ):
        assert line in text
