"""Lines of the log on micro-batches."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from tandem_engine.api.micro_batch_stats import GateState, cost_line, gain_line, gate_line
from tandem_engine.async_engine.micro_batch_log import MicroBatchLog
from tests.unit.engine.test_metrics import MICRO_BATCHES


def test_the_cost_is_told_of_what_there_would_be() -> None:
    assert cost_line(MICRO_BATCHES, 93) == (
        "Micro-batches cost 7 of 100 KV blocks (7.0%): the buffers of two halves take their place"
    )
    assert "cost 0 of 0 KV blocks (0.0%)" in cost_line(replace(MICRO_BATCHES, num_kv_blocks=0), 0)


def test_a_gate_that_turns_names_its_steps_and_the_reason() -> None:
    off = GateState(is_open=False, reason="overlap 0.12 in the last 32 cut steps")

    assert gate_line("prefill", off) == (
        "Micro-batches of steps with prefill are off: overlap 0.12 in the last 32 cut steps"
    )
    assert gate_line("decode", replace(off, is_open=True)).startswith(
        "Micro-batches of decode steps are on: "
    )


def test_the_gain_is_that_since_the_last_line() -> None:
    later = replace(
        MICRO_BATCHES, num_splits=42, refusals={"too_small": 5}, hidden_s=10.0, exposed_s=2.0
    )

    assert gain_line(MICRO_BATCHES, later) == (
        "Micro-batches in the last hour: overlap 0.90; 30 steps were cut, and 2 were not; 5.5 s of "
        "communication were hidden, and 0.5 s were not"
    )
    assert "overlap none; 0 steps" in gain_line(later, replace(later, overlap=None))


class Figures:
    """Figures that change; it counts how often it is asked."""

    def __init__(self) -> None:
        self.stats: Any = MICRO_BATCHES
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        return self.stats

    def turn(self, *, is_open: bool) -> None:
        gates = {**self.stats.gates, "prefill": GateState(is_open=is_open, reason="of this")}
        self.stats = replace(self.stats, gates=gates)


def test_a_gate_is_told_of_when_it_turns(caplog: pytest.LogCaptureFixture) -> None:
    figures = Figures()
    log = MicroBatchLog(figures)
    with caplog.at_level(logging.INFO):
        for now, is_open in ((1.0, True), (2.0, True), (3.0, False), (4.0, False), (5.0, True)):
            figures.turn(is_open=is_open)
            log.step(now)

    assert caplog.messages == [
        "Micro-batches of steps with prefill are off: of this",
        "Micro-batches of steps with prefill are on: of this",
    ]


def test_the_gain_is_told_once_an_hour_while_there_are_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    figures = Figures()
    log = MicroBatchLog(figures)
    with caplog.at_level(logging.INFO):
        for minute in range(150):
            log.step(60.0 * minute)

    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("Micro-batches in the last hour: overlap 0.90; 0 steps")


def test_figures_are_asked_for_once_a_second_and_may_be_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    figures = Figures()
    figures.stats = None
    log = MicroBatchLog(figures)
    for number in range(1000):
        log.step(number / 100)

    assert figures.asked == 10
    assert not caplog.messages
