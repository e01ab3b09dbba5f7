"""Async scheduling: the same tokens, and nothing held or lost, whatever ends meanwhile."""

from typing import Any

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.drafts import NO_PROPOSALS, DraftLimits, Proposals
from tandem_engine.api.step import Step, StepResult
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import (
    BLOCK_SIZE,
    STEP_S,
    Bench,
    counting,
    mix,
    request,
    standard,
    tokens,
)

ASYNC = {"async_scheduling_enable": True}


class Listing(CountingRunner):
    """Keeps the steps in the order in which they were handed in, and how."""

    def __init__(self) -> None:
        super().__init__(block_size=BLOCK_SIZE)
        self.steps: list[Step] = []
        self.raises_at: int | None = None

    def run(self, step: Step) -> StepResult:
        self.steps.append(step)
        if self.raises_at == len(self.steps):
            raise RuntimeError("no such kernel")
        return super().run(step)


def with_async(strategy: Any = "chunked", **settings: Any) -> ScheduleConfig:
    """Of those that begin at once, the simplest."""
    return standard(strategy=strategy, **ASYNC, **settings)


def is_async(bench: Bench) -> bool:
    return bool(bench.engine._launched)


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "splitfuse"])
def test_every_strategy_gives_the_same_tokens_with_async_scheduling(strategy: Any) -> None:
    schedule = mix(32, schedule=ASYNC) if strategy == "splitfuse" else with_async(strategy=strategy)
    requests = [request(f"r{at}", 20 * at + 1, 3 + at) for at in range(5)]
    bench = Bench(schedule, *requests)
    went = []
    for _ in range(200):
        bench.step()
        went.append(is_async(bench))
        if not bench.engine.has_work:
            break
        if not bench.record.step.sequence_ids:
            bench.now = max(bench.now, bench.engine.wake_at)

    assert bench.said == {f"r{at}": list(range(3 + at)) for at in range(5)}
    assert bench.is_empty
    assert any(went)


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked"])
def test_a_request_that_joins_a_batch_takes_no_block_that_running_rows_are_about_to_need(
    strategy: Any,
) -> None:
    settings = {"max_batch_size": 8, "max_prefill_batch_size": 5, "max_prefill_tokens": 4096}
    schedule = with_async(strategy, **settings, enable_prefix_cache=True)
    shared = tokens("c", 2 * BLOCK_SIZE)
    bench = Bench(schedule, request("first", 0, 1, prompt=shared, arrived=-9.0), num_blocks=11)
    finish(bench)
    # Each of these needs another block for its first token; the others have theirs in the cache.
    for name in "vwxyz":
        prompt = tokens(name, BLOCK_SIZE)
        bench.add(request(name, 0, 4, prompt=prompt, arrived=bench.now - 5.0))
    for number in range(3):
        bench.add(request(f"c{number}", 0, 4, prompt=shared, arrived=bench.now - 4.0))
    finish(bench)

    assert {name: len(said) for name, said in bench.said.items()} == {
        "first": 1, **dict.fromkeys("vwxyz", 4), **{f"c{number}": 4 for number in range(3)}
    }  # fmt: skip
    assert bench.is_empty


def finish(bench: Bench) -> None:
    """Step until all have ended."""
    for _ in range(200):
        bench.step()
        if not bench.engine.has_work:
            return
        if not bench.record.step.sequence_ids:
            bench.now = max(bench.now, bench.engine.wake_at)
    raise AssertionError("a sequence never ends")


def test_the_next_step_is_handed_in_before_the_last_one_is_told() -> None:
    runner = Listing()
    bench = Bench(with_async(), request("a", 20, 4), runner=runner)

    bench.step()
    assert (len(runner.steps), bench.said) == (2, {"a": [0]})
    assert (runner.steps[1].starts, runner.steps[1].num_tokens) == ([20], [1])


def test_a_row_that_ends_by_length_is_not_computed_once_more() -> None:
    runner = Listing()
    bench = Bench(with_async(), request("a", 20, 3), request("b", 20, 5), runner=runner)
    bench.finish()

    assert [len(step.sequence_ids) for step in runner.steps] == [2, 2, 2, 1, 1]
    assert bench.said == counting("a", 3) | counting("b", 5)


def test_a_row_that_ends_by_a_stop_token_is_computed_once_more_and_the_result_is_discarded() -> (
    None
):
    runner = Listing()
    bench = Bench(
        with_async(),
        request("a", 20, 9, stop_token_ids=(1,)),
        request("b", 20, 4),
        runner=runner,
    )
    bench.finish()

    assert [len(step.sequence_ids) for step in runner.steps] == [2, 2, 2, 1]
    assert bench.said == {"a": [0, 1], "b": [0, 1, 2, 3]}
    assert bench.reasons == {"a": "stop", "b": "length"}
    assert bench.is_empty


def test_when_all_have_ended_the_step_that_is_under_way_is_still_taken() -> None:
    bench = Bench(with_async(), request("a", 20, 9, stop_token_ids=(0,)))
    bench.step()

    assert bench.reasons == {"a": "stop"}
    assert bench.engine.has_work
    progress = bench.step()
    assert (progress.advances, progress.failed, bench.is_empty) == ([], {}, True)


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_an_abort_at_any_moment_frees_its_blocks_and_disturbs_no_other(
    name: str, moment: int
) -> None:
    requests = [request(each, 30, 5) for each in "abc"]
    bench = Bench(with_async(max_prefill_tokens=64), *requests)
    for _ in range(moment):
        bench.step()
    bench.engine.abort(name)
    bench.scheduler.check_integrity()
    bench.finish()

    assert bench.is_empty
    for other in {"a", "b", "c"} - {name}:
        assert bench.said[other] == list(range(5))


def test_a_step_that_raises_takes_down_its_own_rows_alone() -> None:
    runner = Listing()
    bench = Bench(mix(32, schedule=ASYNC), request("a", 10, 8), runner=runner)
    bench.step()
    bench.add(request("b", 10, 8))
    # The third step is handed in, with both, while the second is computed with a alone.
    runner.raises_at = 2 + 1
    failed = [dict(bench.step().failed) for _ in range(3)]

    assert [sorted(each) for each in failed] == [[], ["a", "b"], []]
    bench.add(request("c", 10, 4))
    bench.finish()
    assert bench.said["c"] == list(range(4))
    assert bench.is_empty


def test_rows_that_join_a_step_after_a_broken_one_live_on() -> None:
    runner = Listing()
    bench = Bench(mix(32, schedule=ASYNC), request("a", 10, 8), runner=runner)
    runner.raises_at = 2
    bench.step()
    bench.add(request("b", 10, 4))
    assert bench.step().failed.keys() == {"a"}
    bench.finish()

    assert bench.said == {"a": [0], "b": [0, 1, 2, 3]}
    assert bench.is_empty


def test_a_step_is_timed_from_the_end_of_the_one_before() -> None:
    bench = Bench(with_async(), request("a", 20, 6))
    records = [bench.step(seconds).record for seconds in (1.0, 0.25, 0.5)]

    assert [record.seconds for record in records if record is not None] == [1.0, 0.25, 0.5]


def test_with_beams_every_step_is_waited_for() -> None:
    bench = Bench(with_async(), request("a", 20, 5, n=2, use_beam_search=True))
    went = []
    while bench.engine.has_work:
        bench.step()
        went.append(is_async(bench))

    assert not any(went)


def no_guess(_: DraftLimits) -> Proposals:
    return NO_PROPOSALS


def test_a_step_with_drafts_is_waited_for_and_one_without_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = CountingRunner(block_size=BLOCK_SIZE)
    guess = runner.propose
    bench = Bench(with_async(), request("a", 20, 30), max_drafts=2, runner=runner)
    drafted, went = [], []
    while bench.engine.has_work:
        # There are guesses behind the first ten tokens alone.
        is_guessing = len(bench.said.get("a", ())) < 10
        monkeypatch.setattr(runner, "propose", guess if is_guessing else no_guess)
        step = bench.step().step
        drafted.append(bool(step.drafts))
        went.append(is_async(bench))

    assert bench.said == {"a": list(range(30))}
    assert any(drafted)
    assert not any(ahead for ahead, has_drafts in zip(went, drafted, strict=True) if has_drafts)
    assert sum(went) > 10
    assert bench.is_empty


def test_choices_are_waited_for_until_they_are_there() -> None:
    bench = Bench(with_async(), request("a", 20, 5, n=3))
    bench.step()
    assert not is_async(bench)
    bench.step()
    assert is_async(bench)
    bench.finish()
    assert bench.said == counting(("a0", "a1", "a2"), 5)


def test_where_a_sequence_has_to_lose_blocks_the_step_is_waited_for() -> None:
    bench = Bench(with_async(), request("a", 30, 40), request("b", 30, 40), num_blocks=6)
    while not bench.engine.stats().num_preemptions:
        was_async = is_async(bench)
        bench.step()

    assert not was_async
    bench.finish()
    assert bench.said == counting("ab", 40)
    assert bench.is_empty


def test_it_is_switched_live() -> None:
    bench = Bench(standard(), request("a", 20, 12))
    bench.step()
    assert not is_async(bench)
    bench.engine.reconfigure(with_async())
    bench.step()
    assert is_async(bench)
    bench.engine.reconfigure(standard())
    bench.step()
    assert not is_async(bench)
    bench.finish()
    assert bench.said == counting("a", 12)


def test_a_prefix_is_shown_to_others_when_it_is_computed_and_not_before() -> None:
    shared = request("a", 64, 20)
    bench = Bench(with_async(), shared)
    bench.step(STEP_S)
    bench.add(request("b", 0, 4, prompt=(*shared.prompt_token_ids, 1, 2)))
    bench.finish()

    assert bench.engine.stats().num_hit_tokens == 64
    assert bench.said == counting("a", 20) | counting("b", 4)
