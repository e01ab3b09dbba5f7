"""A draft model in a whole engine: memory, ranks, what it cannot draft for, and failures."""

import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.request import SamplingParams
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_engine.device.registry import open_device
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.load_decoder import load_decoder
from tests.integration.bench import (
    BLOCK_SIZE,
    END,
    Bench,
    conversation,
    crowd,
    decoder,
    request,
    standard,
)
from tests.integration.test_speculation import draft_model_of, erring
from tests.tiny import TINY

DRAFT = SpeculationConfig(method="draft", draft_path=str(TINY))
PROMPT = conversation(13)
GIB = 2**30


@asynccontextmanager
async def engine_of(**settings: Any) -> AsyncIterator[tuple[AsyncEngine, list[str]]]:
    said: list[str] = []
    values: dict[str, Any] = {"schedule": ScheduleConfig(cache_block_size=16), "max_seq_len": 512}
    config = EngineConfig(model_path=str(TINY), dtype="float32", **{**values, **settings})
    engine = build_engine(config, report=said.append)
    try:
        yield engine, said
    finally:
        await engine.stop()


async def answer(engine: AsyncEngine, **sampling: Any) -> list[int]:
    params = SamplingParams(**{"max_tokens": 40, "logit_bias": {END: -100.0}, **sampling})
    outputs = [output async for output in engine.submit("r", PROMPT, params)]
    return [token for output in outputs for token in output.token_ids]


def drafted(engine: AsyncEngine) -> tuple[int, int]:
    counts = engine.stats().drafts["draft"]
    return counts.num_drafted, counts.num_accepted


# In a replica


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_replica_with_a_draft_model_says_the_same(temperature: float) -> None:
    sampling = {"temperature": temperature, "seed": 3}
    async with engine_of(num_kv_blocks=256) as (engine, _):
        expected = await answer(engine, **sampling)
    async with engine_of(num_kv_blocks=256, speculation=DRAFT) as (engine, said):
        found = await answer(engine, **sampling)
        num_drafted, num_accepted = drafted(engine)

    assert found == expected
    assert num_accepted > 0.9 * num_drafted > 0
    assert f"Loaded the draft model {TINY}" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallelism", [{"tp": 2}, {"pp": 2}, {"dp": 2}], ids=lambda sizes: next(iter(sizes))
)
async def test_ranks_have_a_draft_model_on_the_first(parallelism: dict[str, Any]) -> None:
    async with engine_of(num_kv_blocks=256) as (engine, _):
        expected = await answer(engine, temperature=0.0)
    several = ParallelismConfig(**parallelism)
    async with engine_of(num_kv_blocks=256, speculation=DRAFT, parallelism=several) as (engine, _):
        assert await answer(engine, temperature=0.0) == expected
        num_drafted, num_accepted = drafted(engine)

    assert num_accepted > 0.9 * num_drafted > 0


async def test_its_blocks_are_part_of_the_memory() -> None:
    memory: dict[str, Any] = {"memory_bytes": 16 * GIB, "npu_mem_size": 1}
    async with engine_of(**memory) as (_, said):
        of_token_alone = bytes_of_token(said)
    async with engine_of(**memory, speculation=DRAFT) as (engine, said):
        both, of_token = parts(engine), bytes_of_token(said)
        num_blocks = engine.limits.num_kv_blocks

    assert of_token == 2 * of_token_alone
    assert num_blocks == GIB // (BLOCK_SIZE * of_token)
    assert both["kv_cache"] == num_blocks * BLOCK_SIZE * of_token
    assert sum(both.values()) <= 16 * GIB


def bytes_of_token(said: list[str]) -> int:
    found = re.search(r"KV cache: .* (\d+) bytes a token", "\n".join(said))
    assert found is not None
    return int(found[1])


def parts(engine: AsyncEngine) -> dict[str, float]:
    """Return the parts of the memory of rank 0, as it shows them."""
    lines = re.findall(
        r'^tandem_rank_memory_bytes{.*part="(\w+)".*} (\S+)$',
        engine.metrics().decode(),
        re.MULTILINE,
    )
    return {part: float(value) for part, value in lines}


# What is refused


def copied(folder: Path, change: Callable[[Path], None]) -> SpeculationConfig:
    small = folder / "small"
    shutil.copytree(TINY, small)
    change(small)
    return SpeculationConfig(method="draft", draft_path=str(small))


def with_another_architecture(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace("Qwen3ForCausalLM", "MambaForCausalLM"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shutil.rmtree, "small/config.json"),
        (with_another_architecture, "the architecture MambaForCausalLM is not known"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused_in_a_sentence(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    config = EngineConfig(model_path=str(TINY), speculation=copied(tmp_path, change))

    with pytest.raises(Exception, match=re.escape(words)) as found:
        build_engine(config, report=lambda _: None)

    assert "\n" not in str(found.value)


def test_a_draft_model_that_the_memory_does_not_hold_is_refused() -> None:
    config = EngineConfig(model_path=str(TINY), speculation=DRAFT, memory_bytes=500 * 2**20)

    with pytest.raises(ConfigError, match=r"speculation.draft.source: .* raise resources.memory"):
        build_engine(config, report=lambda _: None)


# What it cannot draft for


def plain() -> dict[str, tuple[int, ...]]:
    return Bench(standard("continuous")).run(crowd(), apart=2).tokens


def bench_with(draft: Decoder) -> Bench:
    return Bench(standard("continuous"), speculation=DRAFT, draft=draft)


def test_a_longer_sequence_than_it_is_made_for_has_no_drafts() -> None:
    short = load_decoder(TINY, dtype="float32", runtime=open_device("cpu"), max_positions=64)

    found = bench_with(short).run(crowd(), apart=2)

    assert found.tokens == plain()
    assert found.stats.drafts["draft"].num_accepted > 0
    for record in found.records:
        step = record.step
        for sequence_id, drafts in step.drafts.items():
            at = list(step.sequence_ids).index(sequence_id)
            assert step.starts[at] + 1 + len(drafts) <= 64


def test_a_token_that_it_has_no_embedding_for_has_no_drafts() -> None:
    """Vocabularies are padded to different sizes: an id may be past the end of the smaller one."""
    bench = bench_with(erring())
    model = draft_model_of(bench)
    model._decoder.config = replace(model._decoder.config, vocab_size=256)
    try:
        found = bench.run(crowd(), apart=2)
    finally:
        model._decoder.config = decoder().config

    assert found.tokens == plain()
    # Every conversation has special tokens, from 256 on.
    with_drafts = {name for record in found.records for name in record.step.drafts}
    assert with_drafts <= {"r10", "r11", "r12", "r13"}


def test_a_biased_token_that_it_does_not_have_has_no_drafts() -> None:
    bench = bench_with(erring())
    model = draft_model_of(bench)
    model._decoder.config = replace(model._decoder.config, vocab_size=END)
    try:
        found = bench.run([request("a", (1, 2, 3))])
    finally:
        model._decoder.config = decoder().config

    assert found.stats.drafts["draft"].num_drafted == 0


# Failures


@pytest.mark.parametrize("at", [0, 3, 17])
def test_a_draft_model_that_raises_is_off(at: int, caplog: pytest.LogCaptureFixture) -> None:
    bench = bench_with(erring())
    model = draft_model_of(bench)
    forward, count = model._forward, 0

    def failing(batch: Any) -> Any:
        nonlocal count
        count += 1
        if count > at:
            raise MemoryError("no room")
        return forward(batch)

    model._forward = failing

    found = bench.run(crowd(), apart=2)

    assert found.tokens == plain()
    assert count == at + 1
    assert caplog.text.count("The draft model has failed and is off") == 1


def test_guesses_that_are_not_finite_are_not_checked() -> None:
    bench = bench_with(erring())
    model = draft_model_of(bench)
    forward, count = model._forward, 0

    def spoilt(batch: Any) -> Any:
        nonlocal count
        count += 1
        logits = forward(batch)
        if count % 3 == 0:
            logits[...] = float("nan")
        return logits

    model._forward = spoilt

    found = bench.run(crowd(), apart=2)

    assert found.tokens == plain()
    assert found.stats.drafts["draft"].num_accepted > 0
