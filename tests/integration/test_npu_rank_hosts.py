"""The hosts of a group of cards: ranks on devices with memory of their own say what one rank on the
CPU says, and wait for their devices as seldom as one rank does: rank 0 for tokens, the others not
at all."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from tandem_engine.api.config import ParallelismConfig
from tandem_engine.api.micro_batches import StreamOptions
from tandem_engine.api.request import SamplingParams
from tests.integration.forced_cuts import forced_cuts, no_cuts
from tests.integration.rank_processes import children
from tests.integration.test_npu_host import ASYNC, LOADING, PARAMS, TOKENS
from tests.integration.test_npu_ranks import cause_of_killed, engine_of
from tests.integration.test_npu_tokens import QUESTIONS, answers
from tests.pretended_device.process import Run, device_process
from tests.pretended_device.ranks import faults_of_ranks, groups_on_devices, waits_of_ranks
from tests.pretended_device.tensors import QUEUE
from tests.slow import slow_but

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sp": True},
    "dp2": {"dp": 2, "world_size": 2},
    "pp2": {"pp": 2},
}
BESIDE_STEPS: Final = LOADING | {
    "device.torch_streams.close",
    "device.torch_streams.seconds",  # once: where the clocks of host and device meet
}
STAGES: Final = "device.torch_streams.wait"
"""Waits of pipeline stages: a thread beside the one that computes for logits of a later stage, and
one that sends for what it sent several steps ago."""
SAMPLED: Final = {kind: PARAMS[kind] for kind in ("greedy", "drawn")}
FLOAT: Final = {"dtype": "float32", **ASYNC}


@pytest.fixture(scope="module")
def on_device() -> Iterator[Run]:
    with device_process() as run:
        yield run


def said_and_waits(
    folder: Path,
    shape: dict[str, Any],
    settings: dict[str, Any],
    *,
    is_cut: bool | None = None,
    params: Mapping[str, SamplingParams] = SAMPLED,
) -> tuple[dict[str, list[str]], Counter[str]]:
    """Answers of a group of ranks on devices, and what rank 0 waited for."""
    QUEUE.waits.clear()
    cuts = nullcontext() if is_cut is None else forced_cuts() if is_cut else no_cuts()
    with groups_on_devices(folder), cuts:
        said = asyncio.run(
            answers(
                QUESTIONS,
                params,
                device="npu",
                parallelism=ParallelismConfig(**shape),
                memory_bytes=4 << 30,
                **settings,
            )
        )
    QUEUE.order.check()
    return said, QUEUE.waits


@pytest.mark.parametrize("name", slow_but(["tp2"], SHAPES))
def test_hosts_wait_for_tokens_alone(on_device: Run, name: str, tmp_path: Path) -> None:
    expected = asyncio.run(answers(QUESTIONS, SAMPLED, **FLOAT))

    said, waits = on_device(said_and_waits, tmp_path, SHAPES[name], FLOAT)

    assert said == expected
    of_stages = {STAGES} if "pp" in SHAPES[name] else set()
    assert set(waits) - BESIDE_STEPS == {TOKENS} | of_stages
    (of_rank,) = waits_of_ranks(tmp_path)
    assert set(of_rank) - BESIDE_STEPS == of_stages
    assert faults_of_ranks(tmp_path) == []


@pytest.mark.slow
def test_halves_are_measured_when_they_are_over(on_device: Run, tmp_path: Path) -> None:
    settings = {**FLOAT, "quantization": "w8a8"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected, _ = on_device(said_and_waits, whole, SHAPES["tp2"], settings)
    settings["stream_options"] = StreamOptions(micro_batch=True)

    said, waits = on_device(said_and_waits, cut, SHAPES["tp2"], settings, is_cut=True)

    assert said == expected
    # What measures a step asks for it when its tokens have come.
    assert set(waits) - BESIDE_STEPS == {TOKENS}
    (of_rank,) = waits_of_ranks(cut)
    assert not set(of_rank) - BESIDE_STEPS
    assert faults_of_ranks(cut) == []


def cause_of_loss(folder: Path) -> str:
    """Kill a rank of two; return what those are told who ask from then on."""
    before = children()
    with groups_on_devices(folder):
        engine = engine_of(parallelism=ParallelismConfig(tp=2))
        (rank,) = children() - before
        return asyncio.run(cause_of_killed(engine, rank))


@pytest.mark.slow
def test_a_rank_that_is_lost_while_steps_are_queued_ends_the_replica(
    on_device: Run, tmp_path: Path
) -> None:
    assert "was ended by SIGKILL" in on_device(cause_of_loss, tmp_path)
