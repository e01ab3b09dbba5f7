"""tandem-tiny, greedy in bfloat16, on 500 questions that it never saw: at least 98 % right."""

import asyncio
from typing import Any

import pytest

from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import SamplingParams
from tandem_engine.build import build_engine
from tandem_engine.front.front import ThreadedFront
from tests.tiny import LEAST_ACCURACY, MAX_ANSWER_TOKENS, TINY, accuracy, held_out, misses

MIX = ScheduleConfig(
    template_type="Mix",
    split_fuse=SplitFuseConfig(split_chunk_tokens=256, split_start_batch_size=0),
)


async def answer(front: ThreadedFront, name: str, messages: list[dict[str, Any]]) -> str:
    prompt = front.codec.encode_chat(messages)
    greedy = SamplingParams(max_tokens=MAX_ANSWER_TOKENS, temperature=0.0)
    return "".join([output.text async for output in front.submit(name, prompt, greedy)])


@pytest.mark.parametrize("schedule", [ScheduleConfig(), MIX], ids=["Standard", "Mix"])
async def test_held_out_questions_are_answered(schedule: ScheduleConfig) -> None:
    conversations = held_out()
    config = EngineConfig(model_path=str(TINY), num_kv_blocks=512, schedule=schedule)
    front = build_engine(config, report=lambda line: None)
    try:
        said = await asyncio.gather(
            *(answer(front, str(at), each.messages) for at, each in enumerate(conversations))
        )
    finally:
        await front.stop()
    answers = dict(enumerate(said))

    assert accuracy(conversations, answers) >= LEAST_ACCURACY, misses(conversations, answers)


def test_prompts_are_long_enough_to_be_cut() -> None:
    lengths = [sum(len(m["content"]) for m in each.messages) for each in held_out()]

    assert min(lengths) <= 15
    assert max(lengths) >= 250
