"""A step that fails takes its rows with it, and those its copies were for; no other is affected.

The counting runner knows what stands in every block, so a survivor that reads what a lost step has
not written is found by the row that reads it.
"""

from typing import Any

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request
from tandem_engine.api.step import Step, StepResult
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import BLOCK_SIZE, Bench, mix, request, standard, tokens

NUM_BLOCKS = 14
NUM_HOST_BLOCKS = 12
KERNEL = "RuntimeError: no such kernel"


class Faulty(CountingRunner):
    """Loses the step of one number, before its copies or behind them."""

    def __init__(self, at: int | None = None, *, behind_copies: bool = False) -> None:
        super().__init__(block_size=BLOCK_SIZE)
        self._at = at
        self._behind_copies = behind_copies
        self.steps: list[Step] = []

    def run(self, step: Step) -> StepResult:
        self.steps.append(step)
        if len(self.steps) - 1 != self._at:
            return super().run(step)
        self.begin(step)
        if not self._behind_copies:
            raise RuntimeError("no such kernel")
        self.copy(step)
        self.lose(step.sequence_ids)
        return StepResult(failed=dict.fromkeys(step.sequence_ids, KERNEL))


def crowd() -> list[Request]:
    """Some grow, some have a beginning in common, some are choices, some are beams."""
    shared = tokens("shared", 2 * BLOCK_SIZE + 3)
    return [
        request("a", 30, 20),
        request("b", 40, 20, arrived=0.01),
        request("p", 0, 12, prompt=(*shared, 1, 2), arrived=0.02),
        request("q", 0, 12, prompt=(*shared, 3), arrived=0.03),
        request("n", 20, 14, n=3, arrived=0.04),
        request("w", 18, 10, n=2, use_beam_search=True, arrived=0.05),
        request("c", 60, 10, arrived=0.06),
    ]


FEW: dict[str, Any] = {"max_preempt_count": 4, "max_batch_size": 8}
SCHEDULES = {
    "splitfuse": mix(48, schedule=FEW),
    "splitfuse, async": mix(48, schedule={**FEW, "async_scheduling_enable": True}),
    "splitfuse, 16 tokens": mix(16, schedule=FEW),
    "continuous": standard(**FEW),
    "continuous, async": standard(**FEW, async_scheduling_enable=True),
    "chunked, async": standard(
        strategy="chunked", max_prefill_tokens=32, **FEW, async_scheduling_enable=True
    ),
    "recompute": mix(48, schedule={**FEW, "max_preempt_count": 0}),
}


def bench_of(schedule: ScheduleConfig, runner: CountingRunner) -> Bench:
    swaps = schedule.max_preempt_count
    return Bench(
        schedule,
        *crowd(),
        num_blocks=NUM_BLOCKS,
        num_host_blocks=NUM_HOST_BLOCKS if swaps else 0,
        runner=runner,
    )


def finish(bench: Bench) -> dict[str, str]:
    """Step to the end; return the failed ones, and why."""
    failed: dict[str, str] = {}
    for _ in range(600):
        if not bench.engine.has_work:
            return failed
        progress = bench.step()
        assert not failed.keys() & progress.failed.keys(), "each is told once"
        failed |= progress.failed
        if not progress.step.sequence_ids:
            bench.now = max(bench.now, bench.engine.wake_at)
    raise AssertionError(f"a sequence never ends: {bench.record}")


def undisturbed(schedule: ScheduleConfig) -> tuple[list[Step], dict[str, list[int]]]:
    runner = Faulty()
    bench = bench_of(schedule, runner)
    assert finish(bench) == {}
    return runner.steps, bench.said


def is_of_interest(step: Step, at: int, every: int) -> bool:
    return bool(step.moved or step.copied or step.beam_moves) or at % every == 0


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("behind_copies", [False, True], ids=["before copies", "behind copies"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_whichever_step_is_lost_the_others_say_what_they_would(
    name: str, *, behind_copies: bool, every: int
) -> None:
    schedule = SCHEDULES[name]
    steps, said = undisturbed(schedule)
    num_lost = 0
    for at, step in enumerate(steps):
        if not is_of_interest(step, at, every):
            continue
        runner = Faulty(at, behind_copies=behind_copies)
        bench = bench_of(schedule, runner)
        failed = finish(bench)

        assert all(cause.endswith(KERNEL) for cause in failed.values()), failed
        survivors = said.keys() - failed.keys()
        assert {each: bench.said.get(each) for each in survivors} == {
            each: said[each] for each in survivors
        }
        assert bench.is_empty
        lost = failed.keys() & set(step.moved)
        assert not (behind_copies and lost), "their copies were made"
        assert behind_copies or lost == set(step.moved)
        num_lost += len(lost)
    assert (num_lost > 0) == (schedule.max_preempt_count > 0 and not behind_copies)


def test_a_sequence_without_a_row_in_a_lost_step_fails_with_its_blocks() -> None:
    schedule = SCHEDULES["splitfuse"]
    steps, _ = undisturbed(schedule)
    at = next(at for at, step in enumerate(steps) if step.swapped_out)
    failed = finish(bench_of(schedule, Faulty(at)))

    for each in steps[at].moved:
        assert failed[each] == f"its KV blocks were lost with a step that failed: {KERNEL}"
    for each in steps[at].sequence_ids:
        assert failed[each] == KERNEL
