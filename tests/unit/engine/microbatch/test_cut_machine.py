"""Any course of steps, cut in two: a state machine drives the scheduler, and all steps are cut.

Requests come, share prefixes, are given up, fail, are preempted and swapped, and have drafts, beams
and choices, as in the scheduler's own machine. What a sequence is told must be what it is told
without cuts, and no half may read what is not written yet.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tandem_engine.microbatch.cut import Cut, RefusalReason, cut
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows
from tests.unit.engine.microbatch import cutting_runner
from tests.unit.engine.microbatch.cutting_runner import CuttingRunner
from tests.unit.engine.microbatch.steps import prices
from tests.unit.engine.moody_runner import MoodyRunner
from tests.unit.engine.scheduling import BLOCK_SIZE, Bench, mix, request
from tests.unit.engine.test_scheduler_properties import SchedulerMachine

EAGER = prices(margin=-9.0, tile=2)
"""Cuts whatever can be, whether it pays or not."""


class CutMachine(SchedulerMachine):
    """Steps are cut by prices that change, as on ranks whose gates open and shut."""

    def make_runner(self, right_drafts: list[bool]) -> MoodyRunner:
        """Return one that cuts."""
        runner = CuttingRunner(block_size=BLOCK_SIZE, right_drafts=right_drafts)
        runner.prices = EAGER
        return runner

    @rule(
        tile=st.sampled_from([2, 3, 16]),
        token_s=st.sampled_from([0.0, 1e-5, 1e-2]),
        pair_s=st.sampled_from([0.0, 1e-8, 1e-3]),
        context_s=st.sampled_from([0.0, 1e-7, 1e-1]),
        prefills=st.booleans(),
        decodes=st.booleans(),
        is_off=st.sampled_from([False, False, False, True]),
    )
    def reprice(
        self,
        tile: int,
        token_s: float,
        pair_s: float,
        context_s: float,
        prefills: bool,
        decodes: bool,
        is_off: bool,
    ) -> None:
        assert isinstance(self.runner, CuttingRunner)
        found = prices(
            margin=-9.0,
            tile=tile,
            token_s=token_s,
            pair_s=pair_s,
            context_s=context_s,
            prefills=prefills,
            decodes=decodes,
        )
        self.runner.prices = None if is_off else found


CutMachine.TestCase.settings = settings(stateful_step_count=25)
TestCut = CutMachine.TestCase


def test_the_runner_of_the_machine_cuts() -> None:
    runner = CuttingRunner(block_size=BLOCK_SIZE)
    runner.prices = EAGER
    bench = Bench(mix(32), *(request(name, 50, 6) for name in "abcdef"), runner=runner)

    bench.finish()

    assert runner.num_cuts > 10
    assert bench.said == {name: list(range(6)) for name in "abcdef"}


def test_halves_in_the_wrong_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(rows: StepRows, at: CutPrices | None) -> Cut | RefusalReason:
        found = cut(rows, at)
        if isinstance(found, Cut):
            return replace(found, first=found.second, second=found.first)
        return found

    monkeypatch.setattr(cutting_runner, "cut", swapped)
    runner = CuttingRunner(block_size=BLOCK_SIZE)
    runner.prices = EAGER
    bench = Bench(mix(32), request("a", 50), runner=runner)

    failed = bench.step().failed

    assert "a reads token 0 in block" in failed["a"]
