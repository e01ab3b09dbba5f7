"""The asynchronous engine over a real model: streams, aborts, failures, pre-emption."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.engine_client import OutputStream
from tandem_engine.api.errors import (
    ConfigError,
    EngineStopped,
    InvalidParameter,
    PromptTooLong,
    ReplicaLost,
    RequestFailed,
)
from tandem_engine.api.output import Output
from tandem_engine.api.request import SamplingParams
from tandem_engine.api.slo import Slo
from tandem_engine.api.step import Advance, Step, StepResult
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.async_engine.choice import Choice
from tandem_engine.build import build_engine
from tandem_engine.engine import Clock
from tests.integration.meeting import meeting
from tests.patience import HANG_S, until

PROMPT = tuple(range(65, 90))
MIX = ScheduleConfig(
    template_type="Mix",
    cache_block_size=16,
    split_fuse=SplitFuseConfig(split_chunk_tokens=64, split_start_batch_size=0),
)


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint("Qwen3ForCausalLM", max_position_embeddings=1024)


@asynccontextmanager
async def engine_of(checkpoint: Path, **settings: Any) -> AsyncIterator[AsyncEngine]:
    values = {"schedule": MIX, "num_kv_blocks": 256, "max_seq_len": 512, **settings}
    config = EngineConfig(model_path=str(checkpoint), dtype="float32", **values)
    engine = build_engine(config, report=lambda line: None)
    try:
        yield engine
    finally:
        await engine.stop()


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 16, "ignore_eos": True, "seed": 1, **values})


async def read(engine: AsyncEngine, sampling: SamplingParams, name: str = "r") -> list[Output]:
    return [output async for output in engine.submit(name, PROMPT, sampling)]


def tokens(outputs: list[Output], index: int = 0) -> list[int]:
    return [token for output in outputs if output.index == index for token in output.token_ids]


def text(outputs: list[Output], index: int = 0) -> str:
    return "".join(output.text for output in outputs if output.index == index)


def counter(engine: AsyncEngine, name: str) -> float:
    found = re.search(
        rf"^tandem_{name}_total{{.*}} (\S+)$", engine.metrics().decode(), re.MULTILINE
    )
    assert found is not None
    return float(found[1])


def all_free(engine: AsyncEngine) -> bool:
    stats = engine.stats()
    idle = stats.num_running == stats.num_waiting == 0
    return idle and stats.num_free_kv_blocks == stats.num_kv_blocks


async def test_a_stream_ends_with_its_reason_and_leaves_no_block(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        outputs = await read(engine, params())

        assert len(tokens(outputs)) == 16
        assert [output.finish_reason for output in outputs][-1] == "length"
        assert all(output.finish_reason is None for output in outputs[:-1])
        await until(lambda: all_free(engine))


async def test_an_abort_frees_every_block(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        stream = engine.submit("long", PROMPT, params(max_tokens=400, n=4))
        await anext(aiter(stream))
        assert not all_free(engine)

        stream.abort()

        await until(lambda: all_free(engine))
        assert counter(engine, "request_aborted") == 4
        assert counter(engine, "generation_tokens") < 4 * 400, "they did not run to their end"


async def test_an_abort_takes_effect_before_the_next_step(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_of(checkpoint) as engine:
        inner = engine._loop._engine
        stream = engine.submit("r", PROMPT, params(max_tokens=400))
        inside, go_on = threading.Event(), threading.Event()
        run, steps_after = inner._runner.run, []

        def pause(step: Step) -> StepResult:
            if not inside.is_set():
                inside.set()
                go_on.wait(HANG_S)
            else:
                steps_after.append(step)
            return run(step)

        monkeypatch.setattr(inner._runner, "run", pause)
        await asyncio.to_thread(inside.wait, 60)
        stream.abort()  # while a step runs
        go_on.set()

        await until(lambda: all_free(engine))
        assert steps_after == []


async def test_aborts_at_random_moments_leave_no_block_and_disturb_no_request(
    checkpoint: Path,
) -> None:
    async with engine_of(checkpoint, num_kv_blocks=48) as engine:
        quiet = tokens(await read(engine, params(), "alone"))

        async def leave_after(count: int) -> None:
            stream = engine.submit(f"leaver{count}", PROMPT, params(max_tokens=100, n=2))
            async for _ in stream:
                count -= 1
                if count <= 0:
                    break
            stream.abort()

        async def stay(name: str) -> list[int]:
            return tokens(await read(engine, params(), name))

        leavers = [leave_after(count) for count in range(40)]
        stayers = [stay(f"stayer{index}") for index in range(8)]
        results = await asyncio.gather(*stayers, *leavers)

        assert all(result == quiet for result in results[:8])
        await until(lambda: all_free(engine))


async def test_requests_that_lose_their_blocks_say_the_same_in_the_end(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as roomy, engine_of(checkpoint, num_kv_blocks=32) as scarce:
        desired = params(max_tokens=60, temperature=0.0)
        expected = tokens(await read(roomy, desired))
        with meeting(scarce, 12):
            results = await asyncio.gather(*(read(scarce, desired, f"r{i}") for i in range(12)))

        assert all(tokens(outputs) == expected for outputs in results)
        assert scarce.stats().num_preemptions > 0
        await until(lambda: all_free(scarce))


async def test_a_seed_gives_the_same_tokens_whatever_else_runs(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        alone = tokens(await read(engine, params(seed=7, top_p=0.95)))
        crowd = [read(engine, params(seed=i, temperature=1.3), f"c{i}") for i in range(10)]
        together = await asyncio.gather(read(engine, params(seed=7, top_p=0.95), "me"), *crowd)

        assert tokens(together[0]) == alone


async def test_choices_differ_and_the_first_is_that_of_n_1(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        one = tokens(await read(engine, params(seed=3)))
        three = await read(engine, params(seed=3, n=3))
        choices = [tokens(three, index) for index in range(3)]

        assert choices[0] == one
        assert len({tuple(choice) for choice in choices}) == 3


async def test_best_of_returns_the_likeliest_choices(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        every = await read(engine, params(n=6, logprobs=0))
        best = await read(engine, params(n=2, best_of=6))

        def mean(index: int) -> float:
            parts = [e.logprob for o in every if o.index == index for e in o.logprobs]
            return sum(parts) / len(parts)

        order = sorted(range(6), key=mean, reverse=True)
        assert [tokens(best, index) for index in range(2)] == [tokens(every, i) for i in order[:2]]
        assert all(not output.logprobs for output in best), "the request did not ask for them"


async def test_a_stop_string_ends_the_text_before_it(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        whole = text(await read(engine, params(temperature=0.0)))
        assert len(whole) >= 8
        outputs = await read(engine, params(temperature=0.0, stop=(whole[4:6],)))

        assert text(outputs) == whole[: whole.index(whole[4:6])]
        assert outputs[-1].finish_reason == "stop"
        await until(lambda: all_free(engine))


async def test_a_stop_id_is_counted_but_not_said(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        plain = tokens(await read(engine, params(temperature=0.0)))
        outputs = await read(engine, params(temperature=0.0, stop_token_ids=(plain[3],)))
        end = plain.index(plain[3])

        assert tokens(outputs) == plain[: end + 1]
        assert text(outputs) == engine.codec.decode(plain[:end])
        assert outputs[-1].finish_reason == "stop"


async def test_logprobs_come_one_a_token_with_the_likeliest(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        outputs = await read(engine, params(temperature=0.0, logprobs=2))
        entries = [entry for output in outputs for entry in output.logprobs]

        assert [entry.token_id for entry in entries] == tokens(outputs)
        assert all(entry.top[0][0] == entry.token_id for entry in entries)
        assert all(entry.top[0][1] == pytest.approx(entry.logprob) for entry in entries)
        assert all(len(entry.top) == 2 for entry in entries)


async def test_live_settings_change_between_steps_and_lose_nothing(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        desired = params(max_tokens=60, temperature=0.0)
        expected = tokens(await read(engine, desired))
        running = [asyncio.create_task(read(engine, desired, f"r{i}")) for i in range(12)]
        for chunk in (16, 512, 32):
            split = SplitFuseConfig(split_chunk_tokens=chunk, split_start_batch_size=0)
            changed = MIX.model_copy(update={"split_fuse": split, "max_batch_size": 4})
            await engine.reconfigure(changed, Slo())
            await asyncio.sleep(0)
        await engine.reconfigure(ScheduleConfig(cache_block_size=16), Slo())

        assert all(tokens(outputs) == expected for outputs in await asyncio.gather(*running))


async def test_a_block_size_is_not_a_live_setting(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        with pytest.raises(ConfigError, match="cacheBlockSize 32 needs a restart"):
            await engine.reconfigure(MIX.model_copy(update={"cache_block_size": 32}), Slo())


async def test_a_step_that_raises_fails_its_requests_with_the_cause(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_of(checkpoint) as engine:
        runner = engine._loop._engine._runner
        run = runner.run

        def break_down(step: Step) -> StepResult:
            if any(name.startswith("poison") for name in step.sequence_ids):
                raise RuntimeError("no such kernel")
            return run(step)

        monkeypatch.setattr(runner, "run", break_down)
        with pytest.raises(RequestFailed, match="RuntimeError: no such kernel"):
            await read(engine, params(), "poison")

        assert len(tokens(await read(engine, params(), "healthy"))) == 16
        await until(lambda: all_free(engine))


async def test_a_temperature_of_almost_nothing_disturbs_no_other(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        quiet = tokens(await read(engine, params()))
        greedy = tokens(await read(engine, params(temperature=0.0)))
        odd, neighbour = await asyncio.gather(
            read(engine, params(temperature=1e-40, logprobs=1), "odd"),
            read(engine, params(), "near"),
        )

        assert tokens(neighbour) == quiet
        assert tokens(odd) == greedy


async def test_numbers_that_went_wrong_do_not_reach_the_next_holder_of_the_blocks(
    checkpoint: Path,
) -> None:
    async with engine_of(checkpoint, num_kv_blocks=32) as engine:
        expected = tokens(await read(engine, params(temperature=0.0)))
        runner: Any = engine._loop._engine._runner
        decoder = runner._executor._worker._decoder
        norm = decoder.packed_model.layers[0].attention_norm  # before K and V
        sound = norm.clone()
        norm.fill_(torch.nan)
        with pytest.raises(RequestFailed, match="not finite numbers"):
            await read(engine, params(), "wrong")
        norm.copy_(sound)

        assert tokens(await read(engine, params(temperature=0.0), "next")) == expected


async def test_max_iter_times_caps_every_answer(checkpoint: Path) -> None:
    schedule = MIX.model_copy(update={"max_iter_times": 5})
    async with engine_of(checkpoint, schedule=schedule) as engine:
        outputs = await read(engine, params(max_tokens=100))

        assert len(tokens(outputs)) == 5
        assert outputs[-1].finish_reason == "length"


async def test_the_same_name_twice_is_two_requests(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        both = await asyncio.gather(read(engine, params(), "same"), read(engine, params(), "same"))

        assert tokens(both[0]) == tokens(both[1])
        await until(lambda: all_free(engine))


async def test_a_text_that_cannot_be_decoded_fails_its_request_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_of(checkpoint) as engine:
        output = Choice.output

        def break_down(choice: Choice, advance: Advance) -> Output:
            if choice.request.request_id.startswith("odd"):
                raise ValueError("no such character")
            return output(choice, advance)

        monkeypatch.setattr(Choice, "output", break_down)
        near = asyncio.create_task(read(engine, params(), "near"))
        with pytest.raises(RequestFailed, match="ValueError: no such character"):
            await read(engine, params(), "odd")

        assert len(tokens(await near)) == 16
        await until(lambda: all_free(engine))


async def test_a_loop_that_dies_ends_every_stream_and_fails_the_health_check(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_of(checkpoint) as engine:
        inner = engine._loop._engine

        def die(_clock: Clock) -> None:
            raise AssertionError("a block is lost")

        stream = engine.submit("r", PROMPT, params(max_tokens=400))
        await anext(aiter(stream))
        monkeypatch.setattr(inner, "step", die)

        with pytest.raises(EngineStopped, match="a block is lost"):
            async for _ in stream:
                pass
        with pytest.raises(EngineStopped, match="The engine died"):
            engine.check_health()
        with pytest.raises(EngineStopped):
            engine.submit("late", PROMPT, params())


@pytest.mark.parametrize("is_idle", [False, True], ids=["computing", "idle"])
async def test_a_lost_replica_ends_every_stream_with_the_cause(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, *, is_idle: bool
) -> None:
    async with engine_of(checkpoint) as engine:
        executor = engine._loop._engine._runner._executor  # type: ignore[attr-defined]

        def lose(_batch: object) -> None:
            raise ReplicaLost("Rank 1 has ended.")

        if is_idle:
            engine._loop.lose(ReplicaLost("Rank 1 has ended."))
            await asyncio.to_thread(engine._loop.join)
        else:
            monkeypatch.setattr(executor, "begin", lose)
            # One that comes after the loss is refused.
            with meeting(engine, 3):
                streams = [engine.submit(f"r{number}", PROMPT, params()) for number in range(3)]
            for stream in streams:
                with pytest.raises(ReplicaLost, match="Rank 1 has ended"):
                    await anext(aiter(stream))

        with pytest.raises(ReplicaLost, match="Rank 1 has ended"):
            engine.check_health()
        with pytest.raises(ReplicaLost, match="Rank 1 has ended"):
            engine.submit("late", PROMPT, params())


async def test_a_stop_ends_running_requests_with_words(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        stream = engine.submit("r", PROMPT, params(max_tokens=400))
        await anext(aiter(stream))
        await engine.stop()

        with pytest.raises(EngineStopped):
            async for _ in stream:
                pass


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "words"),
    [
        ((), {}, InvalidParameter, "The prompt is empty"),
        ((65,) * 600, {}, PromptTooLong, "a prompt may have 511; the prompt has 600 tokens"),
        ((65, 99999), {}, InvalidParameter, "prompt names the token 99999"),
        (PROMPT, {"logit_bias": {5000: 1.0}}, InvalidParameter, "logit_bias names the token 5000"),
        (PROMPT, {"n": 100}, InvalidParameter, r"n is 100; it must be in \[1, 8\]"),
    ],
)
async def test_what_can_never_be_served_is_refused_at_once(
    checkpoint: Path,
    prompt: tuple[int, ...],
    sampling: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    schedule = MIX.model_copy(update={"max_batch_size": 8})
    async with engine_of(checkpoint, schedule=schedule) as engine:
        with pytest.raises(error, match=words):
            engine.submit("r", prompt, params(**sampling))
        assert all_free(engine)


def test_memory_too_small_for_one_sequence_is_refused_with_numbers(checkpoint: Path) -> None:
    config = EngineConfig(model_path=str(checkpoint), num_kv_blocks=3, schedule=MIX)
    with pytest.raises(ConfigError, match=r"room for 48 tokens.*lower maxSeqLen"):
        build_engine(config)


def test_a_length_beyond_the_model_is_refused(checkpoint: Path) -> None:
    config = EngineConfig(model_path=str(checkpoint), max_seq_len=10**6)
    with pytest.raises(ConfigError, match="maxSeqLen is 1000000, the model is made for"):
        build_engine(config)


async def test_a_traced_request_has_the_moments_of_its_choices(checkpoint: Path) -> None:
    async with engine_of(checkpoint) as engine:
        sampling, prompt = params(n=2), tuple(range(100)) * 3
        traced = engine.submit("r", prompt, sampling, is_traced=True)
        other = engine.submit("o", PROMPT, sampling)
        await asyncio.gather(*(_end_of(stream) for stream in (traced, other)))

    first, second = traced.timelines
    assert first.chunks is not None
    # 300 tokens in steps of 64 at most, and the other choices share them.
    assert sum(num_tokens for _, num_tokens in first.chunks) == len(prompt)
    assert max(num_tokens for _, num_tokens in first.chunks) <= 64
    begins = [at for at, _ in first.chunks]
    assert begins == sorted(begins)
    assert first.scheduled == begins[0]
    assert first.first_token is not None
    assert first.arrived < begins[0] <= begins[-1] < first.first_token
    assert first.num_tokens == second.num_tokens == sampling.max_tokens
    assert not other.timelines


async def _end_of(stream: OutputStream) -> None:
    async for _ in stream:
        pass
