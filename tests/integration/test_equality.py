"""The answer to a request does not depend on how it is scheduled: tandem-tiny, greedy and drawn."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest

from tandem_engine.api.request import Request
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.text.codec import load_codec
from tests.integration.bench import (
    BLOCK_SIZE,
    END,
    HOST_BLOCKS,
    NUM_OUTPUT,
    PLAIN,
    ROOMY,
    SCARCE,
    SCHEDULES,
    Bench,
    Outcome,
    all_free,
    alone,
    choices_of,
    choices_said,
    conversation,
    crowd,
    lost_blocks,
    mixed,
    request,
    run,
    truth,
    with_async_scheduling,
    without_cache,
)
from tests.slow import slow_but
from tests.tiny import TINY, held_out


def assert_same(outcome: Outcome, *expected: Outcome) -> None:
    """The same tokens, of the same log-probabilities, as each of its requests said alone."""
    for each in expected:
        for name, tokens in each.tokens.items():
            if name in outcome.tokens:
                assert outcome.tokens[name] == tokens, name
                assert outcome.logprobs[name] == pytest.approx(each.logprobs[name], abs=1e-3), name
    assert outcome.tokens.keys() <= {name for each in expected for name in each.tokens}


def test_the_requests_that_are_compared_say_different_things() -> None:
    """Else an answer that went to another request would not be noticed."""
    said = truth().tokens

    assert len(said) == len(crowd()) == 19
    assert all(len(tokens) == NUM_OUTPUT for tokens in said.values())
    assert len(set(said.values())) == len(said)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_strategy_gives_the_tokens_of_each_request_alone(name: str) -> None:
    outcome = Bench(SCHEDULES[name]).run(crowd(), apart=2)

    assert_same(outcome, truth())
    assert outcome.stats.num_hit_tokens > 0
    assert all_free(outcome.stats)


@pytest.mark.parametrize("name", PLAIN)
def test_no_strategy_needs_the_prefix_cache(name: str) -> None:
    outcome = Bench(without_cache(SCHEDULES[name])).run(crowd(), apart=2)

    assert_same(outcome, truth())
    assert outcome.stats.num_hit_tokens == 0


def test_a_budget_chosen_by_latency_targets_gives_the_same_tokens() -> None:
    slo = Slo(ttft=LatencyTarget(target="100ms"), tpot=LatencyTarget(target="6ms"))

    outcome = Bench(mixed(512), slo=slo).run(crowd(), apart=2)

    assert_same(outcome, truth())
    assert len({record.token_budget for record in outcome.records}) > 2, "it was chosen, not fixed"


@pytest.mark.parametrize("caches", [True, False], ids=["prefix cache", "no prefix cache"])
@pytest.mark.parametrize("swaps", [0, 8], ids=["recompute", "swap"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_preempted_sequence_says_the_same_in_the_end(
    name: str, swaps: int, *, caches: bool
) -> None:
    schedule = SCHEDULES[name] if caches else without_cache(SCHEDULES[name])

    outcome = run(
        schedule.model_copy(update={"max_preempt_count": swaps}),
        crowd(),
        num_blocks=SCARCE,
        num_host_blocks=HOST_BLOCKS * bool(swaps),
    )

    assert_same(outcome, truth())
    assert outcome.stats.num_preemptions > 0
    assert (outcome.stats.num_swaps > 0) == bool(swaps)
    assert all_free(outcome.stats)


def test_swaps_and_recomputes_in_one_run_say_the_same_in_the_end() -> None:
    schedule = mixed(48, max_preempt_count=1)

    outcome = run(schedule, crowd(), num_blocks=SCARCE, num_host_blocks=12)

    assert_same(outcome, truth())
    assert 0 < outcome.stats.num_swaps < outcome.stats.num_preemptions


@pytest.mark.parametrize("name", ["continuous", "splitfuse, 48 tokens"])
def test_without_eviction_none_loses_its_blocks_and_all_say_the_same(name: str) -> None:
    schedule = SCHEDULES[name].model_copy(update={"no_evict": True})

    outcome = run(schedule, crowd(), num_blocks=SCARCE)

    assert_same(outcome, truth())
    assert outcome.stats.num_preemptions == 0


@pytest.mark.parametrize("caches", [True, False], ids=["prefix cache", "no prefix cache"])
@pytest.mark.parametrize("pool", ["ample", "recompute", "swap"])
@pytest.mark.parametrize("name", ["continuous", "splitfuse, 48 tokens"])
def test_choices_say_what_separate_requests_of_their_seeds_say(
    name: str, pool: str, *, caches: bool
) -> None:
    schedule = SCHEDULES[name] if caches else without_cache(SCHEDULES[name])
    together, separate = choices_of(41), choices_said()

    outcome = run(
        schedule.model_copy(update={"max_preempt_count": 4 * (pool == "swap")}),
        [*crowd()[:4], *together],
        num_blocks=ROOMY if pool == "ample" else SCARCE,
        num_host_blocks=HOST_BLOCKS * (pool == "swap"),
    )

    assert_same(outcome, truth(), separate)
    assert all_free(outcome.stats)
    lost = lost_blocks(outcome.records)
    assert any(name.startswith("choice") for name in lost) == (pool != "ample")
    assert (outcome.stats.num_swaps > 0) == (pool == "swap")


@pytest.mark.parametrize("name", PLAIN)
def test_those_that_arrive_together_compute_what_they_have_in_common_once(name: str) -> None:
    alike = crowd()[6:9]
    prompts = [one.prompt_token_ids for one in alike]
    same = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    num_common = len(list(same)) // BLOCK_SIZE * BLOCK_SIZE
    assert num_common >= 64, "else there would be nothing to share"

    outcome = run(SCHEDULES[name].model_copy(update={"max_batch_size": 3}), alike)

    assert_same(outcome, truth())
    assert outcome.stats.num_hit_tokens >= 2 * num_common
    uncommon = sum(map(len, prompts)) - outcome.stats.num_hit_tokens
    assert outcome.num_computed == uncommon + 3 * (NUM_OUTPUT - 1)


def test_the_same_prompt_twice_computes_one_token_of_it_the_second_time() -> None:
    bench = Bench(mixed(48))
    first, second = [one for one in crowd() if len(one.prompt_token_ids) == 64]

    before = bench.run([first])
    after = bench.run([second])

    assert_same(before, truth())
    assert_same(after, truth())
    assert after.stats.num_hit_tokens == 63
    assert after.num_computed == NUM_OUTPUT


def test_a_second_turn_finds_the_first_one_and_says_the_same_as_without_it() -> None:
    codec, messages = load_codec(TINY), list(held_out(60)[15].messages)
    first = turn("first", messages)
    bench = Bench(mixed(48))
    answer = bench.run([first]).tokens["first"]
    messages += [
        {"role": "assistant", "content": codec.decode(answer[:-1])},
        {"role": "user", "content": "Reverse: abcd"},
    ]
    second = turn("second", messages)
    said = (*first.prompt_token_ids, *answer)
    assert second.prompt_token_ids[: len(said)] == said, "else there would be nothing to find"

    outcome = bench.run([second])

    assert_same(outcome, alone([second]))
    # The newest token of the first turn, its end, was never computed.
    assert outcome.stats.num_hit_tokens == (len(said) - 1) // BLOCK_SIZE * BLOCK_SIZE


def turn(name: str, messages: Sequence[dict[str, Any]]) -> Request:
    prompt = tuple(load_codec(TINY).encode_chat(messages))
    greedy = request(name, prompt, logit_bias={})
    return replace(greedy, stop_token_ids=frozenset({END}))


def test_tenants_with_different_salts_share_nothing() -> None:
    prompt = conversation(15)
    salts = ("one", "two", "")
    tenants = [replace(request(f"of {salt}", prompt), cache_salt=salt) for salt in salts]
    expected = alone(tenants)
    bench = Bench(mixed(256))

    outcome = bench.run(tenants)

    assert_same(outcome, expected)
    assert outcome.stats.num_hit_tokens == 0
    assert outcome.num_computed == 3 * (len(prompt) + NUM_OUTPUT - 1)
    for record in outcome.records:
        held = [block for table in record.step.block_tables for block in table]
        assert len(held) == len(set(held)), "a block of two tenants"
    again = bench.run([replace(tenants[0], request_id="again")])
    assert again.tokens["again"] == expected.tokens["of one"]
    assert again.stats.num_hit_tokens == len(prompt) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("name", slow_but(PLAIN, SCHEDULES))
def test_with_async_scheduling_every_strategy_gives_the_same_tokens(name: str) -> None:
    outcome = run(with_async_scheduling(SCHEDULES[name]), crowd())

    assert_same(outcome, truth())
    assert all_free(outcome.stats)


@pytest.mark.parametrize("name", PLAIN)
def test_with_async_scheduling_with_few_blocks_and_arrivals_one_by_one(name: str) -> None:
    bench = Bench(with_async_scheduling(SCHEDULES[name]), num_blocks=SCARCE)
    outcome = bench.run(crowd(), apart=2)

    assert_same(outcome, truth())
    assert all_free(outcome.stats)


def test_with_async_scheduling_answers_end_where_they_would() -> None:
    """They end by a token that the next step does not know of yet."""
    requests = [
        replace(one, sampling=replace(one.sampling, logit_bias={}), stop_token_ids=frozenset({END}))
        for one in crowd()
    ]
    expected = run(SCHEDULES["continuous"], requests)
    outcome = run(with_async_scheduling(SCHEDULES["continuous"]), requests)

    assert_same(outcome, expected)
    assert any(len(tokens) < NUM_OUTPUT for tokens in outcome.tokens.values())
    assert outcome.num_computed > expected.num_computed
    assert all_free(outcome.stats)


def test_with_async_scheduling_choices_are_the_same() -> None:
    outcome = run(with_async_scheduling(SCHEDULES["splitfuse, 48 tokens"]), choices_of(41))

    assert_same(outcome, choices_said())
