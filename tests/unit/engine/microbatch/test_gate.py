"""The gate on a machine of known prices: it learns, cuts what pays, and shuts where it does not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_engine.microbatch.counts import MicroBatchCounts
from tandem_engine.microbatch.cut import Cut, RefusalReason
from tandem_engine.microbatch.gate import EARLY, FIRST_TRIAL, WINDOW, MicroBatchGate
from tandem_engine.microbatch.learned import FIRST_FIT
from tandem_engine.microbatch.overlap import StepOverlap
from tests.unit.engine.microbatch.machine import Machine
from tests.unit.engine.microbatch.steps import prices, step, steps

PROMPT = step((0, 1024))
SHORT = step((0, 64))
DECODES = step(*((200, 1),) * 40)
SLOW_LINK = prices()
MEMORY = prices(latency_s=1e-6, byte_s=1e-12)


def vary(machine: Machine, times: int = 10) -> None:
    """Let it see steps of several kinds."""
    for _ in range(times):
        for rows in (PROMPT, SHORT, DECODES, step((512, 300), (0, 100))):
            machine.run(rows)


def test_prices_are_learnt_and_long_prompts_cut() -> None:
    machine = Machine(SLOW_LINK)
    assert machine.gate.prices() is None

    assert machine.cuts(PROMPT, FIRST_FIT) == 0
    vary(machine, 30)

    found = machine.gate.prices()
    assert found is not None
    assert found.token_s == pytest.approx(SLOW_LINK.token_s, rel=0.2)
    assert found.byte_s == pytest.approx(SLOW_LINK.byte_s, rel=0.3)
    assert machine.cuts(PROMPT, 100) == 100
    assert machine.gate.states()["prefill"].is_open
    assert (machine.counts.overlap(machine.now) or 0.0) > 0.8


def test_nothing_is_cut_where_there_is_nothing_to_hide() -> None:
    machine = Machine(MEMORY)
    vary(machine)

    assert machine.cuts(PROMPT, 100) == 0
    assert machine.run(PROMPT) is RefusalReason.NO_GAIN
    assert machine.gate.states()["prefill"].is_open, "another load may have something to hide"


def test_it_shuts_where_cut_steps_hide_nothing_and_tries_again_ever_later() -> None:
    machine = Machine(SLOW_LINK)
    vary(machine)
    machine.hides = False

    assert 0 < machine.cuts(PROMPT, FIRST_TRIAL) <= WINDOW
    state = machine.gate.states()["prefill"]
    assert not state.is_open
    assert state.reason.startswith("overlap 0.")
    assert state.reason.endswith(f" in the last {WINDOW} cut steps")

    assert machine.cuts(PROMPT, FIRST_TRIAL) == EARLY[0], "one trial, which is short"
    assert machine.cuts(PROMPT, FIRST_TRIAL) == 0, "the next one is later"
    machine.hides = True
    machine.cuts(PROMPT, 2 * FIRST_TRIAL)
    assert machine.cuts(PROMPT, FIRST_TRIAL) == FIRST_TRIAL, "it pays now"


def test_another_load_opens_it_at_once() -> None:
    machine = Machine(SLOW_LINK)
    vary(machine)
    machine.hides = False
    machine.cuts(PROMPT, 2 * WINDOW)
    assert not machine.gate.states()["prefill"].is_open

    for _ in range(2 * WINDOW):
        machine.run(step((0, 4096)))
        state = machine.gate.states()["prefill"]
        if state.is_open:
            break

    assert state.is_open
    assert state.reason.startswith("the load has changed: steps have ")


def test_decode_steps_are_cut_only_after_a_trial_and_while_it_pays() -> None:
    machine = Machine(prices(base_s=1e-6, latency_s=1e-6, byte_s=1e-8))
    vary(machine)
    assert machine.run(DECODES) is RefusalReason.DECODE_ONLY

    machine.cuts(DECODES, FIRST_TRIAL)

    assert machine.gate.states()["decode"].is_open
    assert isinstance(machine.run(DECODES), Cut)
    machine.hides = False
    machine.cuts(DECODES, 2 * WINDOW)
    assert not machine.gate.states()["decode"].is_open


def test_weights_that_are_read_twice_keep_decode_steps_whole() -> None:
    machine = Machine(prices(base_s=50e-3))
    vary(machine)

    assert machine.cuts(DECODES, 2 * FIRST_TRIAL) == 0


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(steps(), min_size=1, max_size=60), st.booleans())
def test_any_course_of_steps_is_counted_whole(found: list[Any], hides: bool) -> None:
    machine = Machine(SLOW_LINK, hides=hides)
    for rows in found:
        machine.run(rows)

    stats = machine.counts.stats(machine.now, gates=machine.gate.states(), num_kv_blocks=0)
    assert stats.num_splits + sum(stats.refusals.values()) == len(found)
    assert set(stats.refusals) == {*RefusalReason}
    assert (stats.overlap is None) == (stats.num_splits == 0)
    assert stats.overlap is None or 0.0 <= stats.overlap <= 1.0
    is_open = any(state.is_open for state in stats.gates.values())
    assert (machine.gate.prices() is None) == (len(found) < FIRST_FIT or not is_open)


def test_the_prices_stay_the_same_object_until_they_change() -> None:
    machine = Machine(SLOW_LINK)
    machine.cuts(PROMPT, FIRST_FIT)
    first = machine.gate.prices()

    machine.run(SHORT)

    assert first is not None
    assert machine.gate.prices() is first


def test_no_price_is_known_at_first() -> None:
    gate = MicroBatchGate(num_collectives=8, token_bytes=100)

    assert gate.prices() is None
    assert [one.is_open for one in gate.states().values()] == [True, False]


def test_the_overlap_is_that_of_an_hour() -> None:
    counts = MicroBatchCounts()
    good = StepOverlap(compute_s=1.0, communication_s=1.0, exposed_s=0.1)
    bad = StepOverlap(compute_s=1.0, communication_s=1.0, exposed_s=0.9)

    assert counts.overlap(0.0) is None
    counts.cut(bad, 10.0)
    assert counts.overlap(20.0) == pytest.approx(0.1)
    counts.cut(good, 1800.0)
    assert counts.overlap(1800.0) == pytest.approx(0.5)
    assert counts.overlap(3700.0) == pytest.approx(0.9)
    assert counts.overlap(5500.0) is None


def test_communication_of_whole_steps_is_exposed() -> None:
    counts = MicroBatchCounts()
    counts.whole(RefusalReason.OFF, StepOverlap(compute_s=1.0, communication_s=2.0, exposed_s=2.0))
    counts.cut(StepOverlap(compute_s=3.0, communication_s=2.0, exposed_s=0.5), 0.0)

    stats = counts.stats(0.0, gates={}, num_kv_blocks=3)
    assert (stats.hidden_s, stats.exposed_s, stats.num_splits) == (1.5, 2.5, 1)
    assert stats.refusals["off"] == 1
    assert stats.num_kv_blocks == 3
