"""Steps of decodes as graphs: an engine says what it says without, from what graphs compute."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.device.registry import BACKENDS
from tandem_engine.model.decode_graphs import GraphStages
from tests.integration.test_npu_tokens import MIX, PARAMS, QUESTIONS, answers
from tests.npu.operators import any_size, operators_on_cpu
from tests.slow import slow_but

ON_CARD: dict[str, Any] = {"device": "npu", "dtype": "float32"}
SETTINGS: dict[str, dict[str, Any]] = {
    "chunks beside decodes": {"schedule": MIX},
    "async scheduling": {"schedule": MIX.model_copy(update={"async_scheduling_enable": True})},
    "a batch limit of five": {"schedule": MIX.model_copy(update={"max_batch_size": 5})},
    "blocks that are swapped": {
        "schedule": MIX.model_copy(update={"max_preempt_count": 4}),
        "num_kv_blocks": 24,
        "cpu_mem_size": 1,
    },
    "decodes alone": {"schedule": ScheduleConfig(strategy="continuous", template_type="Standard")},
    "W8A8": {"schedule": MIX, "quantization": "w8a8"},
}


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let engines on cards compute with the NPU's kernels, on operators in plain torch."""
    monkeypatch.setitem(BACKENDS, "npu", "tests.npu.runtime:NpuOnCpu")
    with operators_on_cpu(), any_size():
        yield


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each step that graphs compute."""
    rows: list[int] = []
    begin = GraphStages.__init__

    def note(self: GraphStages, *args: Any) -> None:
        begin(self, *args)
        rows.append(self._step.metadata.num_rows)

    monkeypatch.setattr(GraphStages, "__init__", note)
    return rows


@pytest.mark.parametrize("name", slow_but(["chunks beside decodes", "W8A8"], SETTINGS))
def test_an_engine_says_the_same_with_graphs_as_without(replayed: list[int], name: str) -> None:
    settings = ON_CARD | SETTINGS[name]
    expected = asyncio.run(answers(QUESTIONS, PARAMS, **settings))
    assert not replayed

    assert asyncio.run(answers(QUESTIONS, PARAMS, **settings, graph="python")) == expected

    # Steps of many sizes, most of them smaller than their graph.
    assert len(set(replayed)) > 2
