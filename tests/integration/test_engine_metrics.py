"""The metrics of a real engine under load: targets that change meanwhile, scrapes all the time."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.api.step import Step, StepResult
from tandem_engine.async_engine.async_engine import AsyncEngine
from tests.integration.test_async_engine import MIX, PROMPT, engine_of, params, read
from tests.patience import HANG_S, until

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

GENEROUS = Slo(ttft=LatencyTarget(target="59s"), tpot=LatencyTarget(target="9s"))
HOPELESS = Slo(ttft=LatencyTarget(target="0.011ms"), tpot=LatencyTarget(target="0.012ms"))


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint("Qwen3ForCausalLM", max_position_embeddings=1024)


def scrape(engine: AsyncEngine) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items()) - {("model_name", "model")}): sample.value
        for family in text_string_to_metric_families(engine.metrics().decode())
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"tandem_{name}", frozenset(labels.items())


def is_count(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_count"))


async def serve(engine: AsyncEngine, name: str, count: int) -> None:
    """Send so many requests at once, each of a length of its own."""
    await asyncio.gather(
        *(
            read(engine, params(max_tokens=2 + number % 7), f"{name}-{number}")
            for number in range(count)
        )
    )


async def test_a_live_change_of_targets_under_load_loses_no_count(checkpoint: Path) -> None:
    async with engine_of(checkpoint, slo=GENEROUS) as engine:
        await serve(engine, "before", 20)
        highest: Series = {}

        async def watch() -> None:
            while True:
                for series, value in scrape(engine).items():
                    if is_count(series[0]):
                        assert value >= highest.get(series, 0.0), f"{series} fell"
                        highest[series] = value
                await asyncio.sleep(0.002)

        watcher = asyncio.create_task(watch())
        for number, slo in enumerate((HOPELESS, GENEROUS, Slo(), HOPELESS)):
            load = asyncio.create_task(serve(engine, f"during-{number}", 10))
            await asyncio.sleep(0.01)
            await engine.reconfigure(MIX, slo)
            await load
        watcher.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watcher
        await serve(engine, "after", 10)
        await until(lambda: scrape(engine)[key("request_success_total")] == 70.0)

        told = scrape(engine)
        bucket = "time_to_first_token_seconds_bucket"
        assert key(bucket, le="59.0") not in told
        assert told[key(bucket, le="1.1e-05")] == 0.0
        assert told[key(bucket, le="+Inf")] == 70.0
        results = {
            result: told[key("slo_requests_total", result=result)]
            for result in ("met", "ttft", "tpot", "both", "failed")
        }
        # Those that ended without any target in force are not judged.
        assert 50.0 <= sum(results.values()) <= 70.0
        assert results["met"] >= 20.0
        assert results["both"] >= 10.0
        assert results["failed"] == 0.0


async def test_predictions_and_the_queues_age_come_from_the_load(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_of(checkpoint, slo=GENEROUS, metric_aliases=("vllm",)) as engine:
        assert key("predicted_capacity_requests_per_second") not in scrape(engine)
        runner = engine._loop._engine._runner
        run, steps = runner.run, list[Step]()
        submitted, seen = threading.Event(), threading.Event()

        def hold(step: Step) -> StepResult:
            """Hold the first step until all have come, and the second until a queue was seen."""
            submitted.wait(HANG_S)
            if steps:
                seen.wait(HANG_S)
            steps.append(step)
            return run(step)

        monkeypatch.setattr(runner, "run", hold)
        streams = [
            engine.submit(f"r-{number}", PROMPT, params(max_tokens=2 + number % 7))
            for number in range(40)
        ]
        submitted.set()
        await until(lambda: scrape(engine)[key("queue_age_seconds")] > 0.0)
        seen.set()
        for stream in streams:
            _ = [output async for output in stream]

        told = scrape(engine)
        assert told[key("queue_age_seconds")] == 0.0
        assert told[key("predicted_capacity_requests_per_second")] > 0.0
        # From here on by a process that serves these requests in virtual time.
        watch = engine._capacity_watch
        assert watch is not None
        watch.hurry()
        await until(lambda: watch.measured is not None)
        assert watch.measured is not None
        question, measured = watch.measured
        assert sorted(lengths.output for lengths in question.requests) == sorted(
            2 + number % 7 for number in range(40)
        )
        told = scrape(engine)
        assert told[key("predicted_capacity_requests_per_second")] == measured.requests_per_s
        assert told[key("predicted_zero_load_ttft_seconds")] > 0.0
        assert told["vllm:num_requests_waiting", frozenset()] == 0.0
