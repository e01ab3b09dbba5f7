"""The ring of the last steps: what is kept, and what it adds up to."""

from math import inf

import pytest

from tandem_engine.api.steps import MAX_KEPT_STEPS
from tandem_engine.scheduler.reason import Reason
from tests.unit.engine.scheduling import Bench, mix, request, standard


def test_a_record_says_what_the_step_was_given_and_how_long_it_took() -> None:
    bench = Bench(mix(32), request("a", 40), request("b", 40))
    bench.run(2, seconds=0.25)
    record = bench.record

    # a's last 8 tokens and 24 of b's: 24 tokens on average at 12, 8 at 36.
    assert (record.number, record.started, record.ended, record.seconds) == (1, 0.25, 0.5, 0.25)
    assert (record.token_budget, record.num_waiting, record.blocked_by) == (32, 0, None)
    assert (record.load.num_tokens, record.load.num_rows) == (32, 2)
    assert record.load.chunk_context == 8 * (32 + 8 / 2) + 24 * (0 + 24 / 2)
    assert record.load.decode_context == 0


def test_the_load_of_decodes_counts_their_context() -> None:
    bench = Bench(mix(64), request("a", 20), request("b", 10))
    bench.run(2)

    # 21 and 11 known tokens.
    assert bench.record.load.decode_context == 32


def test_the_load_counts_prompt_tokens_that_are_scored_until_they_are() -> None:
    bench = Bench(mix(32), request("a", 20), request("b", 40, prompt_logprobs=0))
    bench.run(1)
    first = bench.record.load
    bench.run(3)

    # 20 of a's and 12 of b's.
    assert (first.num_tokens, first.num_scored) == (32, 12)
    assert bench.record.load.num_scored == 0


def test_a_strategy_without_a_budget_records_none() -> None:
    bench = Bench(standard(), request("a", 4))
    bench.now = 1.0
    bench.run(1)

    assert bench.record.token_budget == 0


def test_an_empty_step_is_counted_and_predicts_nothing() -> None:
    bench = Bench(standard(max_queue_delay_microseconds=500_000), request("a", 4))
    bench.run(1)

    assert (bench.record.number, bench.record.predicted_s) == (0, None)
    assert bench.record.wake_at == 0.5


def test_a_step_that_is_computed_still_has_no_end() -> None:
    bench = Bench(mix(32), request("a", 40))
    bench.scheduler.schedule(0.0)

    assert bench.record.ended == inf


def test_only_the_last_ones_are_kept() -> None:
    bench = Bench(mix(32), request("a", 4, MAX_KEPT_STEPS + 10))
    bench.run(MAX_KEPT_STEPS + 5)
    records = bench.engine.records

    assert [len(records.since(0)), records.since(0)[0].number] == [MAX_KEPT_STEPS, 5]
    assert [record.number for record in records.since(MAX_KEPT_STEPS + 3)] == [
        MAX_KEPT_STEPS + 3,
        MAX_KEPT_STEPS + 4,
    ]


def test_preemptions_are_counted_by_where_the_blocks_went() -> None:
    schedule = standard(max_preempt_count=1)
    many = (request(each, 16, 8) for each in "abcd")
    bench = Bench(schedule, *many, num_blocks=5, num_host_blocks=4)
    bench.now = 1.0
    bench.run(2)  # d is swapped, c is recomputed: test_preemption.py

    records, stats = bench.engine.records, bench.engine.stats()
    assert (records.num_swapped, records.num_recomputed) == (1, 1)
    assert (stats.num_swaps, stats.num_preemptions, stats.num_swapped) == (1, 2, 1)


def test_waiting_time_is_charged_to_its_reason() -> None:
    schedule = mix(32, schedule={"max_batch_size": 1, "max_prefill_batch_size": 1})
    bench = Bench(schedule, *(request(each, 4, 2) for each in "abc"))
    bench.run(4, seconds=0.5)
    waited = bench.engine.records.waited_s

    # At 0 and 0.5 a runs: 2 wait; at 1 and 1.5 b does: 1 waits. What is counted ends with the
    # start of the last step: 2 · 0.5 + 2 · 0.5 + 1 · 0.5.
    assert waited[Reason.BATCH_SIZE] == pytest.approx(2.5)
    assert sum(waited.values()) == pytest.approx(2.5)


@pytest.mark.parametrize(("num_blocks", "lacks"), [(3, True), (64, False)])
def test_it_knows_if_the_queue_lacked_blocks(num_blocks: int, lacks: bool) -> None:
    bench = Bench(mix(64), request("a", 20), request("b", 20), num_blocks=num_blocks)
    bench.run(1)

    assert bench.engine.records.lacked_blocks is lacks


def test_a_sequence_that_waits_has_a_reason_in_every_strategy() -> None:
    names = ("static", "dynamic", "continuous", "chunked", "splitfuse")
    for name in names:
        given = {"max_batch_size": 2, "max_prefill_batch_size": 2}
        is_mix = name == "splitfuse"
        schedule = mix(16, schedule=given) if is_mix else standard(strategy=name, **given)
        many = [request(f"r{at}", 20, 12) for at in range(5)]
        bench = Bench(schedule, *many, num_blocks=4)
        bench.now = 10.0
        while bench.engine.has_work:
            bench.step()
            record = bench.record
            assert record.num_waiting == 0 or record.blocked_by or record.skipped, name
