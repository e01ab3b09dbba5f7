"""A whole engine on two ranks: started, asked, changed and stopped; its answers are those of one.

Its processes are real. That a rank dies is in test_rank_faults.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.request import SamplingParams
from tandem_engine.api.slo import Slo
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_engine.kvcache.capacity import in_gib
from tests.integration.bench import conversation
from tests.integration.rank_processes import children, has_ended, memory_for_two
from tests.tiny import TINY
from tests.unit.engine.native import native_kernels

NUM_TOKENS: Final = 12
PRECISIONS: Final[dict[str, dict[str, Any]]] = {
    "float32": {"dtype": "float32"},
    "w8a8": {"dtype": "float32", "quantization": "w8a8", "kv_cache_dtype": "int8"},
}


@asynccontextmanager
async def engine_of(
    tp: int, report: list[str], memory: int, **values: Any
) -> AsyncIterator[AsyncEngine]:
    native_kernels()
    config = EngineConfig(
        model_path=str(TINY),
        parallelism=ParallelismConfig(tp=tp),
        max_seq_len=512,
        memory_bytes=memory,
        schedule=ScheduleConfig(cache_block_size=16, async_scheduling_enable=True),
        **values,
    )
    engine = build_engine(config, report=report.append)
    try:
        yield engine
    finally:
        await engine.stop()


async def answers(engine: AsyncEngine, name: str) -> list[tuple[int, ...]]:
    """What it says to four requests at once."""
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)

    async def ask(number: int) -> tuple[int, ...]:
        stream = engine.submit(f"{name}-{number}", conversation(number), params)
        return tuple([token_id async for output in stream for token_id in output.token_ids])

    return list(await asyncio.gather(*map(ask, (3, 5, 14, 15))))


@pytest.mark.parametrize(
    "precision",
    # `make test` has two ranks in 8 bits already, in test_micro_batch_engine.py.
    ["float32", pytest.param("w8a8", marks=pytest.mark.slow)],
)
async def test_an_engine_on_two_ranks_answers_like_one(precision: str) -> None:
    values, memory = PRECISIONS[precision], memory_for_two()
    alone: list[str] = []
    async with engine_of(1, alone, memory, **values) as engine:
        expected = await answers(engine, "alone")
    before = children()
    lines: list[str] = []

    async with engine_of(2, lines, memory, **values) as engine:
        (pid,) = children() - before
        said = await answers(engine, "before")
        schedule = ScheduleConfig(cache_block_size=16, max_batch_size=2)
        await engine.reconfigure(schedule, Slo())
        again = await answers(engine, "after")

        assert said == again == expected
        engine.check_health()

    assert has_ended(pid)
    assert children() == before
    halves = [line for line in lines if f"Memory: {in_gib(memory // 2)}" in line]
    assert [line[:8] for line in halves] == ["Rank 0: ", "Rank 1: "]
    assert any("on 2 ranks" in line for line in lines if line.startswith("KV cache"))
    assert [line for line in alone if line.startswith(f"Memory: {in_gib(memory)}")]
