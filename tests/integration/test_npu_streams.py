"""The streams of a group of cards: whatever order their events allow, ranks say the same.

The pretended device knows which work comes before which. What may read before the work that
writes, write before the work that reads, or have memory that other work still needs is a fault, and
none may be found on any rank, whichever way the group shares a model.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from tandem_engine.api.micro_batches import StreamOptions
from tandem_engine.api.request import SamplingParams
from tandem_engine.device.streams import Job
from tandem_engine.device.torch_streams import TorchStream
from tests.integration.test_npu_host import ASKING, PARAMS
from tests.integration.test_npu_rank_hosts import FLOAT, said_and_waits
from tests.integration.test_npu_tokens import QUESTIONS, SETTINGS, answers
from tests.pretended_device.order import OrderError
from tests.pretended_device.process import Run, device_process
from tests.pretended_device.ranks import faults_of_ranks
from tests.slow import slow_but

ALL: Final[dict[str, SamplingParams]] = PARAMS | ASKING
HALVES: Final = {
    "quantization": "w8a8",
    "stream_options": StreamOptions(micro_batch=True),
}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sp": True},
    "pp2": {"pp": 2},
    "pp2-dp2": {"pp": 2, "dp": 2, "world_size": 4},
    "tp2-pp2": {"tp": 2, "pp": 2},
    "tp2-dp2": {"tp": 2, "dp": 2, "world_size": 4},
}
WAITS: Final[dict[str, str]] = {
    "compute": "tp2",
    "communicate": "tp2",
    "_send": "pp2",
    "_carry_out": "pp2",
}
"""Functions that let a stream wait for others, and ranks that compute with it."""
WITH_TP: Final = [name for name in SHAPES if "tp2" in name]


@pytest.fixture(scope="module")
def on_device() -> Iterator[Run]:
    with device_process() as run:
        yield run


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_work_of_ranks_is_in_order(on_device: Run, name: str, tmp_path: Path) -> None:
    expected = asyncio.run(answers(QUESTIONS, ALL, **FLOAT))

    said, _ = on_device(said_and_waits, tmp_path, SHAPES[name], FLOAT, params=ALL)

    assert said == expected
    assert faults_of_ranks(tmp_path) == []


@pytest.mark.parametrize("name", slow_but(["tp2"], WITH_TP))
def test_work_of_halves_is_in_order(on_device: Run, name: str, tmp_path: Path) -> None:
    on_device(said_and_waits, tmp_path, SHAPES[name], {**FLOAT, **HALVES}, is_cut=True)

    assert faults_of_ranks(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tp2", "pp2"])
def test_blocks_that_are_swapped_are_in_order(on_device: Run, name: str, tmp_path: Path) -> None:
    settings = {**FLOAT, **SETTINGS["blocks that are swapped"]}

    on_device(said_and_waits, tmp_path, SHAPES[name], settings)

    assert faults_of_ranks(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tp2", "pp2"])
def test_steps_that_are_replayed_are_in_order(on_device: Run, name: str, tmp_path: Path) -> None:
    on_device(said_and_waits, tmp_path, SHAPES[name], {**FLOAT, "graph": "python"})

    assert faults_of_ranks(tmp_path) == []


def faults_without_waits(function: str, *args: Any, **kwargs: Any) -> str:
    """Answer while streams do not wait where a function has them wait."""
    run = TorchStream.run

    def run_at_once(
        stream: TorchStream, work: Callable[[], Any], *, after: Sequence[Job[Any]] = ()
    ) -> Job[Any]:
        is_left_out = sys._getframe(1).f_code.co_name == function
        return run(stream, work, after=() if is_left_out else after)

    with patch.object(TorchStream, "run", run_at_once), pytest.raises(OrderError) as raised:
        said_and_waits(*args, **kwargs)
    return str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("function", WAITS)
def test_a_wait_that_is_left_out_is_found(on_device: Run, function: str, tmp_path: Path) -> None:
    name = WAITS[function]
    settings = {**FLOAT, **HALVES} if name in WITH_TP else FLOAT

    faults = on_device(
        faults_without_waits, function, tmp_path, SHAPES[name], settings, is_cut=name in WITH_TP
    )

    assert re.search("may (read|write|have)", faults)
