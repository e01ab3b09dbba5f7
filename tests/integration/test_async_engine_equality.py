"""Beams are those of transformers, stepped by hand and in AsyncEngine; buffers change no token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.output import Output
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import Slo
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tests.integration.bench import (
    END,
    HOST_BLOCKS,
    MAX_SEQ_LEN,
    PLAIN,
    ROOMY,
    SCARCE,
    SCHEDULES,
    Bench,
    Tokens,
    conversation,
    crowd,
    lost_blocks,
    mixed,
    truth,
    with_async_scheduling,
)
from tests.integration.meeting import meeting
from tests.integration.test_beams import END_OF_TEXT, reference, up_to_end
from tests.tiny import TINY

NUM_OUTPUT = 24
# Cut short in the middle of a message, they leave the model a choice; the first one is whole.
PROMPTS = {
    "a question": conversation(14),
    "half a word": conversation(14)[:4],
    "half a question": conversation(3)[:66],
    "half an answer": conversation(5)[:90],
}
SEARCHES: tuple[dict[str, Any], ...] = (
    {"best_of": 2, "n": 2},
    {"best_of": 4, "n": 2, "length_penalty": 0.5, "early_stopping": "never"},
    {"best_of": 3, "n": 3, "early_stopping": True},
)
Said = list[Tokens]


@asynccontextmanager
async def engine_of(schedule: ScheduleConfig, **settings: Any) -> AsyncIterator[AsyncEngine]:
    values = {"num_kv_blocks": ROOMY, "max_seq_len": MAX_SEQ_LEN, "num_threads": 1, **settings}
    config = EngineConfig(model_path=str(TINY), dtype="float32", schedule=schedule, **values)
    engine = build_engine(config, report=lambda line: None)
    try:
        yield engine
    finally:
        await engine.stop()


async def answers(
    engine: AsyncEngine, name: str, prompt: Tokens, sampling: SamplingParams
) -> tuple[Said, int]:
    """The tokens of each choice, and how many outputs they came in."""
    outputs = [output async for output in engine.submit(name, prompt, sampling)]
    return [tokens(outputs, index) for index in range(sampling.n)], len(outputs)


def tokens(outputs: list[Output], index: int) -> Tokens:
    return tuple(token for output in outputs if output.index == index for token in output.token_ids)


async def others(engine: AsyncEngine) -> dict[str, Tokens]:
    """The crowd of test_equality, all at once."""

    async def one(name: str, prompt: Tokens, sampling: SamplingParams) -> tuple[str, Tokens]:
        said, _ = await answers(engine, name, prompt, sampling)
        return name, said[0]

    said = [
        one(each.request_id, each.prompt_token_ids, replace(each.sampling, seed=each.seeds[0]))
        for each in crowd()
    ]
    return dict(await asyncio.gather(*said))


@cache
def expected() -> dict[str, Said]:
    """Return the outputs of transformers for each prompt in each search."""
    return {
        f"{name}, {number}": transformers_search(prompt, **search)
        for name, prompt in PROMPTS.items()
        for number, search in enumerate(SEARCHES)
    }


@torch.inference_mode()
def transformers_search(prompt: Tokens, *, n: int, best_of: int, **settings: Any) -> Said:
    ids = torch.tensor([prompt])
    found = reference().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        pad_token_id=END_OF_TEXT,
        eos_token_id=END,
        do_sample=False,
        max_new_tokens=NUM_OUTPUT,
        num_beams=best_of,
        num_return_sequences=n,
        **settings,
    )
    return [up_to_end(output, (END,)) for output in found[:, len(prompt) :].tolist()]


def beam_requests() -> list[Request]:
    """Every search of every prompt, for an engine that is stepped by hand."""
    return [
        Request(
            request_id=f"beams: {name}, {number}",
            prompt_token_ids=prompt,
            sampling=sampling_of(search),
            max_new_tokens=NUM_OUTPUT,
            stop_token_ids=frozenset({END}),
            seeds=(0,) * search["best_of"],
            sequence_ids=tuple(
                f"beams: {name}, {number}-{beam}" for beam in range(search["best_of"])
            ),
        )
        for name, prompt in PROMPTS.items()
        for number, search in enumerate(SEARCHES)
    ]


def sampling_of(search: dict[str, Any]) -> SamplingParams:
    return SamplingParams(max_tokens=NUM_OUTPUT, use_beam_search=True, **search)


async def beams(engine: AsyncEngine) -> dict[str, Said]:
    """Every search of every prompt, all at once."""

    async def search(name: str, prompt: Tokens, settings: dict[str, Any]) -> tuple[str, Said]:
        said, _ = await answers(engine, f"beams: {name}", prompt, sampling_of(settings))
        return name, said

    found = [
        search(f"{name}, {number}", prompt, settings)
        for name, prompt in PROMPTS.items()
        for number, settings in enumerate(SEARCHES)
    ]
    return dict(await asyncio.gather(*found))


def test_the_searches_that_are_compared_find_different_things() -> None:
    found = expected()

    assert len({said[0] for said in found.values()}) > len(PROMPTS)
    assert all(len(set(said)) == len(said) for said in found.values())
    assert any(len(said[0]) == NUM_OUTPUT for said in found.values())


@pytest.mark.parametrize(
    "caches",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["prefix cache", "no prefix cache"],
)
@pytest.mark.parametrize("name", PLAIN)
def test_beams_that_lose_their_blocks_are_those_of_transformers_whatever_the_strategy(
    name: str, *, caches: bool
) -> None:
    settings = {"enable_prefix_cache": caches, "max_batch_size": 24}
    schedule, requests = SCHEDULES[name].model_copy(update=settings), beam_requests()

    outcome = Bench(schedule, num_blocks=SCARCE).run([*crowd()[:6], *requests])

    found = [
        [said for beam in request.sequences[: request.sampling.n] if (said := outcome.tokens[beam])]
        for request in requests
    ]
    assert found == list(expected().values())
    assert all(
        outcome.tokens[one.request_id] == truth().tokens[one.request_id] for one in crowd()[:6]
    )
    assert any(name.startswith("beams") for name in lost_blocks(outcome.records))


@pytest.mark.parametrize("caches", [True, False], ids=["prefix cache", "no prefix cache"])
async def test_beams_among_other_requests_are_those_of_transformers(*, caches: bool) -> None:
    async with engine_of(mixed(48, enable_prefix_cache=caches)) as engine:
        found, said = await asyncio.gather(beams(engine), others(engine))

        assert found == expected()
        assert said == truth().tokens
        assert engine.stats().num_preemptions == 0
        assert (engine.stats().num_hit_tokens > 0) == caches


@pytest.mark.parametrize("swaps", [0, 4], ids=["recompute", "swap"])
@pytest.mark.parametrize("caches", [True, False], ids=["prefix cache", "no prefix cache"])
async def test_beams_that_lose_their_blocks_are_those_of_transformers(
    swaps: int, *, caches: bool
) -> None:
    schedule = mixed(64, enable_prefix_cache=caches, max_preempt_count=swaps)
    async with engine_of(
        schedule, num_kv_blocks=SCARCE, num_host_blocks=HOST_BLOCKS * bool(swaps)
    ) as engine:
        with meeting(engine, len(crowd()) + len(expected())):
            said, found = await asyncio.gather(others(engine), beams(engine))

        assert found == expected()
        assert said == truth().tokens
        stats = engine.stats()
        assert stats.num_free_kv_blocks == stats.num_kv_blocks
        lost = lost_blocks(engine._loop._engine.records.since(0))
        assert any(name.startswith("beams") for name in lost)


@pytest.mark.parametrize("expected_ms", [1, 10_000], ids=["short", "long"])
async def test_outputs_that_are_held_back_have_the_same_tokens(expected_ms: int) -> None:
    schedule = mixed(
        48,
        buffer_response_enabled=True,
        prefill_expected_time=expected_ms,
        decode_expected_time=expected_ms,
    )
    async with engine_of(schedule) as engine:
        assert await others(engine) == truth().tokens

        _, num_outputs = await answers(
            engine, "last", conversation(5), SamplingParams(max_tokens=8, ignore_eos=True)
        )
        # Nothing is due before the last token, which takes all others with it.
        assert num_outputs == 1 or expected_ms == 1


async def test_with_async_scheduling_the_engine_gives_the_same_tokens_and_all_is_given_back() -> (
    None
):
    schedule = SCHEDULES["splitfuse, 48 tokens"]
    sampling = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, logit_bias={END: -100.0})
    async with engine_of(with_async_scheduling(schedule)) as engine:
        whole = [one async for one in engine.submit("whole", conversation(14), sampling)]
        text = "".join(one.text for one in whole)
        stops = replace(sampling, stop=(text[3:5],))

        said, cut = await asyncio.gather(others(engine), _text(engine, stops))
        stream = engine.submit("left", conversation(3), sampling)
        await anext(aiter(stream))
        stream.abort()
        await engine.reconfigure(schedule, Slo())
        again = await _text(engine, stops)
        while engine.stats().num_running:
            await asyncio.sleep(0.01)
        stats = engine.stats()

    assert said == truth().tokens
    assert cut == again == text[: text.index(text[3:5])]
    assert stats.num_free_kv_blocks == stats.num_kv_blocks


async def _text(engine: AsyncEngine, sampling: SamplingParams) -> str:
    outputs = [one async for one in engine.submit("stops", conversation(14), sampling)]
    assert outputs[-1].finish_reason == "stop"
    return "".join(one.text for one in outputs)
