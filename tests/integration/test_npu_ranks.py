"""Ranks on pretended cards, which exchange tensors by process groups: they say what one rank says.

Their processes are real. Each computes with the NPU's kernels over operators in plain torch; gloo
stands in for HCCL behind the same communicator (tests/npu/pretended).
"""

import asyncio
import itertools
import os
import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from tandem_engine.api.config import (
    EngineConfig,
    ParallelismConfig,
    ScheduleConfig,
    SplitFuseConfig,
)
from tandem_engine.api.device_facts import Device
from tandem_engine.api.errors import ConfigError, ReplicaLost
from tandem_engine.api.micro_batches import CclConfig, StreamOptions
from tandem_engine.api.request import SamplingParams
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_engine.convert import quantize_checkpoint
from tandem_engine.device.npu.linear import multiply_and_add_up
from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.registry import BACKENDS
from tests.integration.forced_cuts import forced_cuts, no_cuts
from tests.integration.rank_processes import children, has_ended
from tests.npu.operators import any_size, operators_on_cpu
from tests.npu.pretended_hccl import hccl as gloo
from tests.patience import HANG_S
from tests.slow import slow_but
from tests.tiny import LEAST_ACCURACY, TINY, accuracy, held_out, misses

QUESTIONS: Final = 8
NUM_ACCURACY: Final = 100
"""test_npu_tokens.py has all 500 on one card."""
PRETENDED: Final = Path(__file__).parents[1] / "npu" / "pretended"
MIX: Final = ScheduleConfig(
    template_type="Mix",
    cache_block_size=16,
    async_scheduling_enable=True,
    split_fuse=SplitFuseConfig(split_chunk_tokens=32, split_start_batch_size=0),
)
SHAPES: Final[dict[str, Any]] = {
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sp": True},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2, "world_size": 2},
    "tp2-pp2": {"tp": 2, "pp": 2},
}
PARAMS: Final = {
    "greedy": SamplingParams(max_tokens=16, temperature=0.0),
    "drawn": SamplingParams(max_tokens=8, temperature=0.8, n=2, seed=7),
    "beams": SamplingParams(max_tokens=8, use_beam_search=True, n=2, best_of=3),
}


@pytest.fixture(autouse=True)
def _cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cards for this process, which is rank 0, and for those that it starts."""
    monkeypatch.setenv("PYTHONPATH", str(PRETENDED))
    monkeypatch.setenv("PRETENDED_CARD", "/dev/null")
    monkeypatch.setitem(BACKENDS, "npu", "tests.npu.runtime:NpuOnCpu")
    monkeypatch.setattr("tandem_engine.parallel.hccl.hccl", gloo)
    with operators_on_cpu(), any_size():
        yield


def engine_of(device: Device = "npu", **settings: Any) -> AsyncEngine:
    config = EngineConfig(
        device=device,
        memory_bytes=4 << 30,
        **{
            "model_path": str(TINY),
            "dtype": "float32",
            "schedule": MIX,
            "num_kv_blocks": 512,
            **settings,
        },
    )
    return build_engine(config, report=lambda line: None)


async def answer(engine: AsyncEngine, name: str, number: int, params: SamplingParams) -> list[str]:
    """The texts of all outputs of a request, by their number."""
    texts: dict[int, str] = {}
    prompt = engine.codec.encode_chat(held_out(number + 1)[number].messages)
    async for output in engine.submit(name, prompt, params):
        texts[output.index] = texts.get(output.index, "") + output.text
    return [text for _, text in sorted(texts.items())]


async def answers(engine: AsyncEngine) -> dict[str, list[str]]:
    """Answers to questions, all at once, with each of the parameters."""
    names = [(f"{kind} {number}", kind, number) for number in range(QUESTIONS) for kind in PARAMS]
    said = await asyncio.gather(
        *(answer(engine, name, number, PARAMS[kind]) for name, kind, number in names)
    )
    return {name: texts for (name, _, _), texts in zip(names, said, strict=True)}


def said_by(engine: AsyncEngine) -> dict[str, list[str]]:
    async def ask() -> dict[str, list[str]]:
        try:
            return await answers(engine)
        finally:
            await engine.stop()

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def expected() -> dict[str, list[str]]:
    """Answers of one rank on the CPU."""
    return said_by(engine_of("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_ranks_on_cards_say_what_one_says(name: str, expected: dict[str, list[str]]) -> None:
    parallelism = ParallelismConfig(**SHAPES[name])

    assert said_by(engine_of(parallelism=parallelism)) == expected


@pytest.mark.parametrize("name", slow_but(["tp2"], SHAPES))
def test_ranks_that_replay_graphs_say_what_one_says(
    name: str, expected: dict[str, list[str]]
) -> None:
    engine = engine_of(parallelism=ParallelismConfig(**SHAPES[name]), graph="python")

    assert said_by(engine) == expected


@pytest.mark.slow
def test_swapped_blocks_of_ranks_on_cards_say_the_same(expected: dict[str, list[str]]) -> None:
    swapping = MIX.model_copy(update={"max_preempt_count": 4})
    engine = engine_of(
        parallelism=ParallelismConfig(tp=2),
        schedule=swapping,
        max_seq_len=512,
        num_kv_blocks=40,
        cpu_mem_size=1,
    )

    assert said_by(engine) == expected


@pytest.mark.slow
def test_micro_batches_on_cards_change_no_token() -> None:
    def said(cuts: AbstractContextManager[None], **settings: Any) -> dict[str, list[str]]:
        with cuts:
            engine = engine_of(parallelism=ParallelismConfig(tp=2), quantization="w8a8", **settings)
            return said_by(engine)

    on = {"stream_options": StreamOptions(micro_batch=True)}

    off = said(nullcontext())
    assert said(no_cuts(), **on) == off
    assert said(forced_cuts(), **on) == off


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tp2", "tp2-pp2"])
def test_sums_that_an_operator_makes_change_no_token(
    name: str, expected: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[torch.Size] = []

    def counted(x: Tensor, packed: PackedLinear, group: str) -> Tensor:
        sums.append(x.shape)
        return multiply_and_add_up(x, packed, group)

    monkeypatch.setattr("tandem_engine.device.npu.kernels.multiply_and_add_up", counted)
    parallelism = ParallelismConfig(**SHAPES[name])

    engine = engine_of(
        parallelism=parallelism, ccl=CclConfig(enable_mc2=True), num_kv_blocks=None, npu_mem_size=1
    )
    assert sums, "what it takes is measured"
    sums.clear()

    assert said_by(engine) == expected
    # Two a layer, in steps with prompts alone.
    assert sums
    assert len(sums) % 2 == 0


@pytest.mark.slow
def test_layers_in_8_bits_have_no_such_operator(tmp_path: Path) -> None:
    """As the checkpoint alone says."""
    folder = tmp_path / "in 8 bits"
    quantize_checkpoint(TINY, folder)

    with pytest.raises(ConfigError, match=r"ccl\.enableMc2 adds up results of layers in float"):
        engine_of(
            parallelism=ParallelismConfig(tp=2),
            ccl=CclConfig(enable_mc2=True),
            model_path=str(folder),
        )


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "w8a8"])
def test_two_cards_answer_held_out_questions(quantization: str) -> None:
    questions = held_out(NUM_ACCURACY)
    engine = engine_of(
        dtype="bfloat16", quantization=quantization, parallelism=ParallelismConfig(tp=2)
    )

    async def ask() -> dict[int, str]:
        try:
            texts = await asyncio.gather(
                *(
                    answer(engine, str(number), number, PARAMS["greedy"])
                    for number in range(len(questions))
                )
            )
            return {number: text for number, (text,) in enumerate(texts)}
        finally:
            await engine.stop()

    said = asyncio.run(ask())

    assert accuracy(questions, said) >= LEAST_ACCURACY, misses(questions, said)


async def answer_for_ever(engine: AsyncEngine) -> None:
    for number in itertools.count():
        await answer(engine, f"after {number}", 0, PARAMS["greedy"])


async def ill_health(engine: AsyncEngine) -> str:
    """Wait until the engine is lost; return why."""
    while True:
        try:
            engine.check_health()
        except ReplicaLost as lost:
            return str(lost)
        await asyncio.sleep(0.1)


async def cause_of_killed(engine: AsyncEngine, rank: int) -> str:
    """Kill a rank; return what those are told who ask from then on."""
    try:
        assert await answer(engine, "before", 0, PARAMS["greedy"])
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(ReplicaLost) as raised:
            await asyncio.wait_for(answer_for_ever(engine), HANG_S)
        return str(raised.value)
    finally:
        await engine.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tp2", "tp2-pp2"])
def test_a_killed_rank_ends_the_replica_and_none_is_left(name: str) -> None:
    before = children()
    engine = engine_of(parallelism=ParallelismConfig(**SHAPES[name]))
    ranks = sorted(children() - before)

    cause = asyncio.run(cause_of_killed(engine, ranks[-1]))

    assert "was ended by SIGKILL" in cause
    assert all(map(has_ended, ranks))


@pytest.mark.slow
def test_a_stopped_rank_is_missed_though_the_step_that_waits_for_it_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem_engine.build.RANK_TIMEOUT_S", 5.0)
    before = children()
    engine = engine_of(parallelism=ParallelismConfig(tp=2, pp=2))
    ranks = sorted(children() - before)

    async def stop_one() -> str:
        try:
            assert await answer(engine, "before", 0, PARAMS["greedy"])
            os.kill(ranks[-1], signal.SIGSTOP)
            asking = asyncio.create_task(answer_for_ever(engine))
            cause = await asyncio.wait_for(ill_health(engine), HANG_S)
            # As Ray does with an unhealthy replica; gloo's calls end with the connections.
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            with pytest.raises(ReplicaLost):
                await asyncio.wait_for(asking, HANG_S)
            return cause
        finally:
            await engine.stop()

    cause = asyncio.run(stop_one())

    assert re.match(r"No collective of group .+ has ended for \d+ s, where a step may take", cause)
    assert all(map(has_ended, ranks))
