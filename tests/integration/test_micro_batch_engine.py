"""A whole engine on two ranks with micro-batches: its memory, its answers and what it tells."""

import os
import signal
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.micro_batches import StreamOptions
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_engine.parallel.plan import ParallelShape
from tests.integration.bench import Bench, crowd, mixed
from tests.integration.forced_cuts import forced_cuts, no_cuts
from tests.integration.rank_processes import memory_for_two
from tests.integration.test_micro_batch_combinations import num_splits
from tests.integration.test_rank_engine import answers
from tests.integration.test_ranks import ranks_of, step_until_lost
from tests.tiny import TINY
from tests.unit.engine.native import native_kernels


def start(report: list[str], **values: Any) -> AsyncEngine:
    native_kernels()
    config = EngineConfig(
        model_path=str(TINY),
        quantization="w8a8",
        dtype="float32",
        parallelism=ParallelismConfig(tp=2),
        stream_options=StreamOptions(micro_batch=True),
        max_seq_len=512,
        memory_bytes=memory_for_two(),
        schedule=ScheduleConfig(cache_block_size=16),
        **values,
    )
    return build_engine(config, report=report.append)


def shown(engine: AsyncEngine) -> dict[tuple[str, ...], float]:
    """Name and labels of each series on micro-batches → its value."""
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "model_name")): (
            sample.value
        )
        for family in text_string_to_metric_families(engine.metrics().decode())
        for sample in family.samples
        if "micro_batch" in sample.name or "communication" in sample.name
    }


async def test_an_engine_cuts_steps_and_tells_what_that_brings_and_costs() -> None:
    lines: list[str] = []
    engine = start(lines)
    try:
        with no_cuts():
            whole = await answers(engine, "whole")
        before = shown(engine)
        with forced_cuts():
            cut = await answers(engine, "cut")
        after = shown(engine)
        engine.check_health()
    finally:
        await engine.stop()

    assert cut == whole
    assert before["tandem_micro_batch_splits_total",] == 0
    assert ("tandem_micro_batch_overlap_ratio",) not in before
    assert after["tandem_micro_batch_splits_total",] > 0
    assert 0.0 <= after["tandem_micro_batch_overlap_ratio",] <= 1.0
    assert after["tandem_communication_seconds_total", "hidden"] >= 0.0
    exposed = ("tandem_communication_seconds_total", "exposed")
    assert after[exposed] > before[exposed] > 0.0
    assert {key[1] for key in after if key[0] == "tandem_micro_batch_state"} == {
        "prefill",
        "decode",
    }
    (line,) = [one for one in lines if one.startswith("Micro-batches cost ")]
    assert f"cost {after['tandem_micro_batch_kv_blocks',]:.0f} of " in line
    assert after["tandem_micro_batch_kv_blocks",] > 0


@pytest.mark.slow
def test_a_rank_that_is_killed_in_a_cut_step_is_named() -> None:
    with ranks_of(ParallelShape(tp=2), micro_batch=True) as (group, executor), forced_cuts():
        (pid,) = group.pids
        bench = Bench(mixed(256), executor=executor)
        for one in crowd():
            bench.engine.add(one)
        bench.engine.step(lambda: 0.0)
        assert num_splits(executor) == 1
        compute = executor._local.compute

        def killing(batch: Any) -> Any:
            os.kill(pid, signal.SIGKILL)
            return compute(batch)

        executor._local.compute = killing  # type: ignore[method-assign]

        reason = step_until_lost(bench)
        bench.engine.close()

    assert "Rank 1" in reason
    assert "SIGKILL" in reason
    assert group.pids == []


@pytest.mark.slow
async def test_blocks_that_are_given_cost_nothing() -> None:
    lines: list[str] = []
    engine = start(lines, num_kv_blocks=200)
    try:
        found = shown(engine)
    finally:
        await engine.stop()

    assert found["tandem_micro_batch_kv_blocks",] == 0
    assert any(line.startswith("Micro-batches cost 0 of 200 KV blocks") for line in lines)
