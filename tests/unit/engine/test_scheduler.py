"""The loop around the policies: ends, failures, live settings, statistics."""

import pytest

from tandem_engine.api.step import SampledToken, Step, StepResult
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import BLOCK_SIZE, Bench, counting, mix, request, standard


def test_a_stop_id_ends_a_request_and_frees_its_blocks() -> None:
    bench = Bench(mix(32), request("a", 4, 8, stop_token_ids=(2,)))
    bench.finish()

    assert (bench.said, bench.reasons) == ({"a": [0, 1, 2]}, {"a": "stop"})
    assert bench.is_empty


def test_min_tokens_skips_an_early_stop_id() -> None:
    bench = Bench(mix(32), request("a", 4, 8, stop_token_ids=(0, 3), min_tokens=2))
    bench.finish()

    assert (bench.said, bench.reasons) == ({"a": [0, 1, 2, 3]}, {"a": "stop"})


def test_the_length_limit_ends_a_request() -> None:
    bench = Bench(mix(32), request("a", 4, 3))
    bench.finish()

    assert (bench.said, bench.reasons) == ({"a": [0, 1, 2]}, {"a": "length"})


def test_a_stop_id_among_right_drafts_ends_it_there() -> None:
    bench = Bench(mix(32), request("a", 4, 20, stop_token_ids=(2,)), max_drafts=5)
    bench.finish()

    assert bench.said == {"a": [0, 1, 2]}


@pytest.mark.parametrize("num_blocks", [2, 3, 4])
def test_no_row_loses_its_blocks_for_the_drafts_of_another(num_blocks: int) -> None:
    said = []
    for max_drafts in (0, 5):
        requests = (request(name, 10, 40) for name in "ab")
        bench = Bench(standard(), *requests, num_blocks=num_blocks, max_drafts=max_drafts)
        while not bench.engine.stats().num_preemptions:
            bench.step()
        said.append({name: len(tokens) for name, tokens in bench.said.items()})

    assert said[0] == said[1]


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_an_abort_frees_everything_at_any_time(steps: int) -> None:
    bench = Bench(mix(32), request("a", 70, 8))
    bench.run(steps)
    bench.engine.abort("a")
    bench.engine.abort("a")

    assert bench.is_empty


def test_a_swapped_request_gives_its_host_blocks_back() -> None:
    many = (request(each, 16, 8) for each in "abcd")
    schedule = standard(max_preempt_count=2)
    bench = Bench(schedule, *many, num_blocks=5, num_host_blocks=4)
    bench.now = 1.0
    bench.run(2)
    assert bench.host.num_held == 2
    for each in "cd":
        bench.engine.abort(each)

    assert bench.host.num_held == 0
    bench.finish()
    assert bench.said == counting("ab", 8) | counting("cd", 1)


class BreakingRunner(CountingRunner):
    """Raises in steps that hold `poison`; fails the row `frail` alone."""

    def run(self, step: Step) -> StepResult:
        if "poison" in step.sequence_ids:
            raise RuntimeError("no such kernel")
        tokens = dict(super().run(step).tokens)
        failed = {}
        for each in ("frail", "choices0"):
            if tokens.pop(each, None):
                failed[each] = "its logits are no numbers"
        return StepResult(tokens=tokens, failed=failed)


def breaking(*names: str) -> Bench:
    bench = Bench(mix(64), runner=BreakingRunner(block_size=BLOCK_SIZE))
    bench.add(*(request(each, 4, 2) for each in names))
    return bench


def test_a_step_that_raises_takes_down_its_own_requests_only() -> None:
    bench = breaking("poison", "beside")
    failed = bench.step().failed
    bench.add(request("later", 4, 2))
    bench.finish()

    assert dict(failed) == dict.fromkeys(("poison", "beside"), "RuntimeError: no such kernel")
    assert bench.said == counting(["later"], 2)
    assert bench.is_empty


def test_a_row_without_numbers_fails_alone() -> None:
    bench = breaking("frail", "sound")
    progress = bench.step()

    assert progress.failed == {"frail": "its logits are no numbers"}
    assert list(progress.advances[0].tokens) == [SampledToken(0)]
    assert bench.engine.stats().num_running == 1


def test_pending_forks_fail_with_the_prompt() -> None:
    bench = breaking()
    bench.add(request("choices", 4, 2, n=3))

    assert set(bench.step().failed) == {"choices0", "choices1", "choices2"}
    assert bench.is_empty


def test_a_row_that_is_aborted_while_its_step_runs_is_skipped() -> None:
    bench = Bench(mix(32), request("a", 4), request("b", 4))
    step = bench.scheduler.schedule(0.0)
    bench.scheduler.abort("a")
    result = StepResult(tokens={each: [SampledToken(0)] for each in "ab"})

    assert [one.sequence_id for one in bench.scheduler.complete(step, result, 1.0)] == ["b"]
    bench.scheduler.check_integrity()


def test_settings_that_keep_their_names_keep_what_was_latched() -> None:
    bench = Bench(mix(16, start=1, schedule={"max_prefill_tokens": 200}), request("a", 20, 2))
    bench.run(2)  # the gate opened when a decoded… if one joined it
    bench.add(request("b", 20), request("c", 20))
    bench.run(1)
    bench.engine.reconfigure(mix(32, start=1, schedule={"max_prefill_tokens": 200}))
    for each in "bc":
        bench.engine.abort(each)
    bench.add(request("d", 40))

    assert bench.run(1) == [{"d": 32}]


def test_a_pool_that_is_too_small_for_one_is_told_before() -> None:
    bench = Bench(mix(32), num_blocks=4)

    # ⌈(40 + 24) / 16⌉ = 4, and one more token is one block more.
    assert bench.engine.can_ever_hold(request("a", 40, 24))
    assert not bench.engine.can_ever_hold(request("a", 40, 25))
    # Choices may run one after another; beams may not: 2 + 2 · 2, and 1 beside its copies.
    assert bench.engine.can_ever_hold(request("a", 40, 24, n=2))
    assert not bench.engine.can_ever_hold(request("a", 40, 24, n=2, use_beam_search=True))


def test_statistics_are_told_as_data() -> None:
    prompt = request("a", 40).prompt_token_ids
    bench = Bench(mix(64), request("a", 40, 2), num_blocks=10, num_host_blocks=3)
    bench.run(1)
    bench.add(request("b", 0, 2, prompt=prompt), request("waits", 200))
    bench.run(1)
    stats = bench.engine.stats()

    assert (stats.num_running, stats.num_waiting, stats.num_swapped) == (1, 1, 0)
    # b shares 2 of a's blocks and has one of its own; a's third went back.
    assert (stats.num_kv_blocks, stats.num_free_kv_blocks) == (10, 7)
    assert (stats.num_host_blocks, stats.num_free_host_blocks) == (3, 3)
    assert (stats.num_queried_tokens, stats.num_hit_tokens) == (80, 32)


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "splitfuse"])
@pytest.mark.parametrize("cache", [True, False])
def test_outputs_are_the_same_with_every_strategy_and_under_pressure(
    strategy: str, cache: bool
) -> None:
    given = {"enable_prefix_cache": cache, "max_batch_size": 4, "max_prefill_batch_size": 4}
    is_mix = strategy == "splitfuse"
    schedule = mix(16, schedule=given) if is_mix else standard(strategy=strategy, **given)
    many = [request(f"r{at}", 10 + 7 * at, 30) for at in range(6)]
    bench = Bench(schedule, *many, num_blocks=6)
    bench.now = 10.0
    bench.finish()

    assert bench.said == counting((f"r{at}" for at in range(6)), 30)
    assert bench.is_empty


def test_nothing_is_forgotten_of_a_scheduler_that_idles() -> None:
    bench = Bench(mix(32))

    assert isinstance(bench.scheduler, Scheduler)
    assert not bench.engine.has_work
    assert bench.run(1) == [{}]
