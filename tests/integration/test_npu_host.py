"""The host of a card: an engine on a device with memory of its own says what it says on the CPU,
and waits for the device no more often than it has to."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pytest

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.engine_client import OutputStream
from tandem_engine.api.request import SamplingParams
from tandem_engine.api.slo import Slo
from tandem_engine.api.timeline import Timeline
from tandem_engine.build import build_engine
from tests.integration.test_npu_tokens import MIX, QUESTIONS, SETTINGS, answers
from tests.integration.test_timeline import with_answers
from tests.patience import HANG_S
from tests.pretended_device.process import Run, device_process
from tests.pretended_device.runtime import engines_on_device
from tests.pretended_device.tensors import QUEUE
from tests.slow import slow_but
from tests.tiny import TINY, held_out

TOKENS: Final = "device.host_memory.wait"
"""The one wait of most steps: for their own tokens, by an event."""
RECORDING: Final = "device.torch_streams.wait"
"""That of a step which is recorded."""
NUM_RECORDED: Final = 4
LOADING: Final = {
    "device.npu.linear.put",
    "device.reference.kernels.put",
    "model.quantized.finished",
    "model.rope.__init__",
    "quantization.int8.quantize_rows",
    "weights.checkpoint.hand_over",
}
"""Waits before the first step."""
PARAMS: Final = {
    "greedy": SamplingParams(max_tokens=8, temperature=0.0),
    "drawn": SamplingParams(max_tokens=8, temperature=0.8, seed=7),
    "min_p": SamplingParams(max_tokens=8, temperature=0.7, min_p=0.1, min_tokens=4, seed=3),
    "penalties": SamplingParams(
        max_tokens=8, presence_penalty=0.5, repetition_penalty=1.1, logit_bias={5: 1.0}, seed=5
    ),
    "logprobs": SamplingParams(max_tokens=8, temperature=0.0, logprobs=3),
}
"""Sampling that the device does without asking the host."""
ASKING: Final = {
    "cut": SamplingParams(max_tokens=8, temperature=0.8, top_p=0.9, top_k=30, seed=7),
    "nucleus": SamplingParams(max_tokens=8, temperature=0.8, top_p=0.9, seed=7),
    "prompt logprobs": SamplingParams(max_tokens=4, temperature=0.0, prompt_logprobs=2),
    "choices": SamplingParams(max_tokens=8, temperature=0.8, n=3, seed=7),
    "beams": SamplingParams(max_tokens=8, use_beam_search=True, n=2, best_of=3),
}
"""Sampling of which the host has to know more than tokens."""
ASYNC: Final = SETTINGS["async scheduling"]


@pytest.fixture(scope="module")
def on_device() -> Iterator[Run]:
    with device_process() as run:
        yield run


def said_and_waits(
    params: dict[str, SamplingParams], settings: dict[str, Any]
) -> tuple[dict[str, list[str]], Counter[str]]:
    """Answers of an engine on the device, and what its steps waited for."""
    QUEUE.waits.clear()
    with engines_on_device(settings.get("device", "cpu")):
        said = asyncio.run(answers(QUESTIONS, params, **settings))
    QUEUE.order.check()
    return said, Counter({by: n for by, n in QUEUE.waits.items() if by not in LOADING})


def compare(on_device: Run, params: dict[str, SamplingParams], **settings: Any) -> Counter[str]:
    """Have both say the same; return what the device was waited for."""
    settings = {"dtype": "float32", **settings}
    expected = asyncio.run(answers(QUESTIONS, params, **settings))
    waits: Counter[str]
    said, waits = on_device(said_and_waits, params, settings)
    assert said == expected
    return waits


@pytest.mark.parametrize("name", slow_but(["greedy"], PARAMS))
def test_steps_wait_for_their_tokens_alone(on_device: Run, name: str) -> None:
    waits = compare(on_device, {name: PARAMS[name]}, **ASYNC)

    assert set(waits) == {TOKENS}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("cut", 1), ("nucleus", 2)])
def test_steps_with_cut_rows_wait_a_little_more(on_device: Run, name: str, more: int) -> None:
    waits = compare(on_device, {name: ASKING[name]}, **ASYNC)

    assert waits.total() <= (1 + more) * waits[TOKENS]


@pytest.mark.slow
def test_steps_in_8_bits_wait_for_their_tokens_alone(on_device: Run) -> None:
    waits = compare(on_device, {"greedy": PARAMS["greedy"]}, quantization="w8a8", **ASYNC)

    assert set(waits) == {TOKENS}


@pytest.mark.parametrize("quantization", slow_but(["none"], ["none", "w8a8"]))
def test_steps_that_are_replayed_wait_for_their_tokens_alone(
    on_device: Run, quantization: str
) -> None:
    params = {"greedy": PARAMS["greedy"], "drawn": PARAMS["drawn"]}
    settings = {"quantization": quantization, **ASYNC}
    expected = asyncio.run(answers(QUESTIONS, params, dtype="float32", **settings))

    on_card = settings | {"dtype": "float32", "device": "npu", "graph": "python"}
    said, waits = on_device(said_and_waits, params, on_card)

    assert said == expected
    assert set(waits) == {TOKENS}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_all_sampling_at_once_says_the_same(on_device: Run, name: str) -> None:
    compare(on_device, PARAMS | ASKING, **SETTINGS[name])


@pytest.mark.slow
def test_blocks_go_out_and_come_back_by_copies_without_a_wait(on_device: Run) -> None:
    waits = compare(on_device, PARAMS, **SETTINGS["blocks that are swapped"])

    assert set(waits) == {TOKENS}


async def asked_twice() -> tuple[list[str], int]:
    """Answers while settings change, and to the same once more; tokens that the cache had."""
    config = EngineConfig(model_path=str(TINY), dtype="float32", num_kv_blocks=512, **ASYNC)
    engine = build_engine(config, report=print)
    prompts = [engine.codec.encode_chat(chat.messages) for chat in held_out(QUESTIONS)]
    said: list[str] = []
    num_cached = 0
    try:
        for chunk in (16, 512):
            streams = [
                engine.submit(f"{chunk} {at}", prompt, PARAMS["greedy"])
                for at, prompt in enumerate(prompts)
            ]
            texts = asyncio.gather(*map(text_of, streams))
            split_fuse = MIX.split_fuse.model_copy(update={"split_chunk_tokens": chunk})
            changed = {"split_fuse": split_fuse, "max_batch_size": 4}
            await engine.reconfigure(ASYNC["schedule"].model_copy(update=changed), Slo())
            said += await texts
            num_cached += sum(stream.num_cached_tokens for stream in streams)
    finally:
        await engine.stop()
    return said, num_cached


async def text_of(stream: OutputStream) -> str:
    return "".join([output.text async for output in stream])


def asked_twice_on_device() -> tuple[list[str], int]:
    with engines_on_device():
        said = asyncio.run(asked_twice())
    QUEUE.order.check()
    return said


@pytest.mark.slow
def test_live_changes_and_cached_prefixes_change_no_answer(on_device: Run) -> None:
    expected, _ = asyncio.run(asked_twice())

    said, num_cached = on_device(asked_twice_on_device)

    assert said == expected
    assert num_cached > 0


def recorded_steps() -> tuple[Timeline, bool]:
    """Steps of an engine on the device; and whether each recorded one was waited for."""

    async def record() -> Timeline:
        engine = build_engine(EngineConfig(model_path=str(TINY), num_kv_blocks=512), report=print)
        try:
            return await with_answers(engine, engine.timeline(NUM_RECORDED, within_s=HANG_S))
        finally:
            await engine.stop()

    QUEUE.waits.clear()
    with engines_on_device():
        timeline = asyncio.run(record())
    return timeline, QUEUE.waits[RECORDING] == NUM_RECORDED


def test_a_recorded_step_is_over_when_its_time_is_read(on_device: Run) -> None:
    timeline, were_waited_for = on_device(recorded_steps)

    assert were_waited_for
    assert [step.number for step in timeline.steps] == [*range(NUM_RECORDED)]
    for step in timeline.steps:
        (computed,) = step.slices
        assert (computed.stream, computed.kind) == ("compute", "stage")
        assert step.begin_s == computed.begin_s < computed.end_s == step.end_s
    assert all(step.end_s <= after.begin_s for step, after in pairwise(timeline.steps))


def test_chunks_that_yield_nothing_are_waited_for_at_their_end(on_device: Run) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    split_fuse = MIX.split_fuse.model_copy(update={"split_chunk_tokens": 16})
    schedule = ASYNC["schedule"].model_copy(update={"split_fuse": split_fuse})

    waits = compare(on_device, {"one token": params}, schedule=schedule)

    assert set(waits) == {TOKENS}
    # More than steps can yield.
    assert waits[TOKENS] > QUESTIONS


def test_a_chunk_that_is_scored_and_yields_nothing_is_computed(on_device: Run) -> None:
    schedule = ScheduleConfig(
        template_type="Mix",
        split_fuse=MIX.split_fuse.model_copy(update={"split_chunk_tokens": 16}),
    )

    compare(on_device, {"scored": ASKING["prompt logprobs"]}, schedule=schedule)
