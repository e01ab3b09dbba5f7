"""An engine on the NPU's kernels, over operators on the CPU, says what it says on the CPU's."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import SamplingParams
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_engine.device.registry import BACKENDS
from tests.integration.test_accuracy import answers as greedy_answers
from tests.npu.operators import any_size, operators_on_cpu
from tests.slow import slow_but
from tests.tiny import (
    LEAST_ACCURACY,
    MAX_ANSWER_TOKENS,
    TINY,
    accuracy,
    held_out,
    misses,
)

MIX: Final = ScheduleConfig(
    template_type="Mix",
    split_fuse=SplitFuseConfig(split_chunk_tokens=32, split_start_batch_size=0),
)
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "whole prompts": {"schedule": ScheduleConfig(enable_prefix_cache=False)},
    "chunks beside decodes": {"schedule": MIX},
    "blocks that are swapped": {
        "schedule": MIX.model_copy(update={"max_preempt_count": 4}),
        "num_kv_blocks": 24,
        "cpu_mem_size": 1,
    },
    "async scheduling": {"schedule": MIX.model_copy(update={"async_scheduling_enable": True})},
}
PARAMS: Final = {
    "greedy": SamplingParams(max_tokens=MAX_ANSWER_TOKENS, temperature=0.0),
    "beams": SamplingParams(max_tokens=8, use_beam_search=True, n=2, best_of=3),
    "drawn": SamplingParams(max_tokens=8, temperature=0.8, n=3, seed=7),
}
QUESTIONS: Final = 6


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let engines compute with the NPU's kernels, once it is called."""
    with operators_on_cpu(), any_size():
        yield lambda: monkeypatch.setitem(BACKENDS, "cpu", "tests.npu.runtime:NpuOnCpu")


async def answer(
    engine: AsyncEngine, name: str, messages: list[dict[str, Any]], params: SamplingParams
) -> list[str]:
    """The texts of all outputs of a request."""
    texts: defaultdict[int, str] = defaultdict(str)
    prompt = engine.codec.encode_chat(messages)
    async for output in engine.submit(name, prompt, params):
        texts[output.index] += output.text
    return [text for _, text in sorted(texts.items())]


async def answers(
    count: int, params: Mapping[str, SamplingParams], **settings: Any
) -> dict[str, list[str]]:
    """What an engine says to questions, all at once, with each of some parameters."""
    config = EngineConfig(**{"model_path": str(TINY), "num_kv_blocks": 512, **settings})
    engine = build_engine(config, report=lambda line: None)
    names = [(at, each) for at in range(count) for each in params]
    chats = held_out(count)
    try:
        said = await asyncio.gather(
            *(
                answer(engine, f"{each} {at}", chats[at].messages, params[each])
                for at, each in names
            )
        )
    finally:
        await engine.stop()
    return {f"{each} {at}": texts for (at, each), texts in zip(names, said, strict=True)}


@pytest.mark.parametrize("name", slow_but(["chunks beside decodes"], SETTINGS))
def test_an_engine_says_the_same_as_on_the_cpu(npu: Callable[[], None], name: str) -> None:
    settings = {"dtype": "float32", **SETTINGS[name]}
    expected = asyncio.run(answers(QUESTIONS, PARAMS, **settings))

    npu()

    assert asyncio.run(answers(QUESTIONS, PARAMS, **settings)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
)
def test_each_architecture_says_the_same_as_on_the_cpu(
    npu: Callable[[], None], make_checkpoint: Callable[..., Path], architecture: str
) -> None:
    folder = make_checkpoint(architecture, head_dim=128, max_position_embeddings=1024)
    settings = {"dtype": "float32", "schedule": MIX, "model_path": str(folder)}
    expected = asyncio.run(answers(QUESTIONS, PARAMS, **settings))

    npu()

    assert asyncio.run(answers(QUESTIONS, PARAMS, **settings)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "w8a8"])
def test_held_out_questions_are_answered(npu: Callable[[], None], quantization: str) -> None:
    npu()

    said = asyncio.run(greedy_answers(schedule=MIX, quantization=quantization))

    assert accuracy(held_out(), said) >= LEAST_ACCURACY, misses(held_out(), said)
