"""Every step can be explained: what it gave to whom, and why not to others."""

import re
import threading
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.steps import MAX_KEPT_STEPS, StepExplanation
from tandem_engine.engine import Engine
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.records.explain import explain
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import drafts_of
from tests.unit.step_records import wait_of

BLOCK_SIZE = 16
STEP_S = 0.25


def request(name: str, num_prompt: int, num_output: int = 8, arrived: float = 0.0) -> Request:
    return Request(
        request_id=name,
        # Tokens of its own: nothing is shared unless a test wants it.
        prompt_token_ids=tuple(crc32(f"{name}{at}".encode()) % 997 for at in range(num_prompt)),
        sampling=SamplingParams(max_tokens=num_output),
        max_new_tokens=num_output,
        arrived=arrived,
    )


def mix(chunk: int = 32, **given: Any) -> ScheduleConfig:
    split = SplitFuseConfig(split_chunk_tokens=chunk, split_start_batch_size=0)
    return ScheduleConfig(
        template_type="Mix", cache_block_size=BLOCK_SIZE, split_fuse=split, **given
    )


class Clocked:
    """An engine whose every step takes a quarter of a second."""

    def __init__(
        self,
        schedule: ScheduleConfig,
        *requests: Request,
        num_blocks: int = 64,
        num_host_blocks: int = 0,
        max_drafts: int = 0,
    ) -> None:
        pool = BlockPool(num_blocks, BLOCK_SIZE)
        scheduler = Scheduler(
            schedule, pool, host=HostPool(num_host_blocks), speculation=drafts_of(max_drafts)
        )
        self.engine = Engine(scheduler, CountingRunner(block_size=BLOCK_SIZE))
        self._now = 0.0
        for each in requests:
            self.engine.add(each)

    def run(self, count: int) -> list[StepExplanation]:
        """So many more steps, explained."""
        for _ in range(count):
            self.engine.step(self._clock)
        return explain(self.engine.records.since(0))[-count:]

    def _clock(self) -> float:
        """Asked twice a step: when it begins, and when it is over."""
        self._now += STEP_S
        return self._now


def shape(step: StepExplanation) -> list[tuple[str, str, int, int]]:
    return [(row.sequence_id, row.kind, row.start, row.num_tokens) for row in step.rows]


def test_a_step_says_which_rows_got_how_many_tokens_and_of_what() -> None:
    clocked = Clocked(mix(32), request("a", 40), request("b", 30))

    first, second, third = clocked.run(3)

    assert shape(first) == [("a", "chunk", 0, 32)]
    assert shape(second) == [("a", "chunk", 32, 8), ("b", "chunk", 0, 24)]
    assert shape(third) == [("a", "decode", 40, 1), ("b", "chunk", 24, 6)]
    assert (third.num_decode_tokens, third.num_prefill_tokens, third.num_tokens) == (1, 6, 7)
    assert [step.number for step in (first, second, third)] == [0, 1, 2]
    assert [step.token_budget for step in (first, second, third)] == [32, 32, 32]
    assert [step.max_token_budget for step in (first, second, third)] == [32, 32, 32]
    assert [[row.num_known for row in step.rows] for step in (first, second, third)] == [
        [40],
        [40, 30],
        [None, 30],
    ]


def test_a_step_says_when_it_was_and_how_long_it_took() -> None:
    clocked = Clocked(mix(32), request("a", 40))
    clocked.run(2)

    first, second = explain(clocked.engine.records.since(0), epoch_s=1000.0)

    assert (first.started, first.seconds) == (1000.25, STEP_S)
    assert (second.started, second.seconds) == (1000.75, STEP_S)
    assert first.predicted_s is not None


def test_a_step_that_is_being_computed_has_no_time_yet() -> None:
    scheduler = Scheduler(mix(32), BlockPool(64, BLOCK_SIZE))
    scheduler.add(request("a", 40))
    scheduler.schedule(5.0)

    (half,) = explain(scheduler.records.since(0))

    assert half.seconds is None
    assert shape(half) == [("a", "chunk", 0, 32)]


def test_an_empty_step_has_no_prediction_and_none_waits() -> None:
    (empty,) = Clocked(mix(32)).run(1)

    assert (empty.rows, empty.predicted_s, empty.blocked_by, empty.num_waiting) == (
        (),
        None,
        None,
        0,
    )


def test_drafts_are_counted_in_the_row() -> None:
    clocked = Clocked(mix(32), request("a", 20), max_drafts=3)

    _, second = clocked.run(2)

    assert [(row.num_tokens, row.num_drafts) for row in second.rows] == [(4, 3)]
    assert (second.num_decodes, second.num_drafts) == (1, 3)


def test_decodes_may_be_counted_without_a_list_of_them() -> None:
    clocked = Clocked(mix(32), request("a", 20), request("b", 40))
    clocked.run(2)

    _, second = explain(clocked.engine.records.since(0), with_decodes=False)

    assert shape(second) == [("b", "chunk", 12, 28)]
    assert (second.num_decodes, second.num_decode_tokens) == (1, 1)


def test_one_that_waits_for_tokens_is_told_how_many_there_were() -> None:
    clocked = Clocked(mix(32), *(request(name, 40) for name in "abc"))

    (first,) = clocked.run(1)

    assert first.blocked_by is not None
    assert first.blocked_by.reason == "token_budget"
    assert first.blocked_by.text == "b waits for tokens: the token budget of 32 is exhausted."
    assert (first.num_waiting, first.num_behind) == (2, 1)


def test_one_that_waits_for_blocks_is_told_so() -> None:
    # 4 blocks: the first prompt takes 3, and the second would need 3.
    clocked = Clocked(mix(64), request("a", 40), request("b", 40), num_blocks=4)

    (first,) = clocked.run(1)

    assert first.blocked_by is not None
    assert first.blocked_by.reason == "kv_blocks"
    # 40 tokens take 3 blocks, and one block stays free for whom runs.
    assert first.blocked_by.text == "b waits for KV blocks: 1 free, 4 needed."


def test_blocks_that_are_reserved_for_others_are_not_called_scarce() -> None:
    # a has 3 blocks and may need 5 of the 8; b would need 4 at its end.
    both = (request("a", 40, 40), request("b", 40, 24))
    (first,) = Clocked(mix(64, no_evict=True), *both, num_blocks=8).run(1)

    assert first.blocked_by is not None
    assert first.blocked_by.text == (
        "b waits for KV blocks: 5 free, but reserved for running sequences (noEvict)."
    )


def test_one_that_waits_for_another_stage_is_told_which_one_it_is() -> None:
    schedule = ScheduleConfig(
        cache_block_size=BLOCK_SIZE, strategy="chunked", max_prefill_tokens=32
    )
    clocked = Clocked(schedule, *(request(name, 20) for name in "abc"))

    first, second = clocked.run(2)

    assert shape(first) == [("a", "chunk", 0, 20), ("b", "chunk", 0, 12)]
    assert shape(second) == [("a", "decode", 20, 1)]
    assert second.blocked_by is not None
    assert second.blocked_by.text == "c waits for another kind of step: this one is for decodes."


def test_a_forming_batch_says_how_long_it_will_wait_at_most() -> None:
    schedule = ScheduleConfig(
        cache_block_size=BLOCK_SIZE,
        strategy="static",
        max_batch_size=2,
        max_first_token_wait_time=2500,
    )
    clocked = Clocked(schedule, request("a", 20))

    (first,) = clocked.run(1)

    assert first.rows == ()
    assert first.blocked_by is not None
    # It began to wait at 0, the step is at 0.25 s.
    assert (
        first.blocked_by.text
        == "a waits for more requests: its batch is forming, for 2.250 s more at most."
    )


def test_a_preempted_sequence_is_named_with_what_became_of_it() -> None:
    # Two sequences that grow beyond what 5 blocks hold.
    both = (request("a", 30, 40), request("b", 30, 40))
    recomputed = Clocked(mix(64), *both, num_blocks=5).run(30)
    swapped = Clocked(mix(64, max_preempt_count=2), *both, num_blocks=5, num_host_blocks=8).run(30)

    assert {name for step in recomputed for name in step.recomputed} == {"b"}
    assert not any(step.swapped for step in recomputed)
    assert {name for step in swapped for name in step.swapped} == {"b"}
    assert max(step.num_swapped for step in swapped) == 1


def test_a_pending_prefix_skips_the_second_of_two() -> None:
    twins = [
        Request(
            request_id=name,
            prompt_token_ids=tuple(range(64)),
            sampling=SamplingParams(max_tokens=4),
            max_new_tokens=4,
        )
        for name in ("a", "b")
    ]

    _, second, third = Clocked(mix(48, enable_prefix_cache=True), *twins).run(3)

    assert shape(second) == [("a", "chunk", 48, 16)]
    assert [wait.text for wait in second.skipped] == [
        "b waits for a prefix that another sequence is computing, to share it."
    ]
    assert shape(third) == [("a", "decode", 64, 1), ("b", "decode", 63, 1)]
    assert [row.num_hit for row in third.rows] == [None, 63], "said once, when it is admitted"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words_that_follow_waits(reason: Reason) -> None:
    wait = wait_of("b", reason)

    assert wait.reason == reason.value
    assert re.fullmatch(r"b waits (for|because|behind) [^{}]*[^.{}]\.", wait.text)


def test_what_was_explained_stays_true_while_the_engine_goes_on() -> None:
    clocked = Clocked(mix(32), *(request(f"r{i}", 50) for i in range(6)), num_blocks=12)
    before = clocked.run(5)

    clocked.run(20)

    assert explain(clocked.engine.records.since(0))[:5] == before


def test_the_last_steps_are_kept_and_the_newest_of_them_can_be_asked_for() -> None:
    clocked = Clocked(mix(32))
    clocked.run(600)
    records = clocked.engine.records

    def numbers(*asked: int) -> list[int]:
        return [record.number for record in records.since(*asked)]

    assert numbers() == list(range(600 - MAX_KEPT_STEPS, 600))
    assert numbers(597) == numbers(0, 3) == numbers(10, 3) == [597, 598, 599]
    assert numbers(600) == numbers(9999) == []


def test_steps_can_be_read_while_the_engine_goes_on() -> None:
    clocked = Clocked(mix(32))
    records = clocked.engine.records
    is_over = threading.Event()

    def go_on() -> None:
        clocked.run(5_000)
        is_over.set()

    writer = threading.Thread(target=go_on)
    writer.start()
    while not is_over.is_set():
        numbers = [record.number for record in records.since(0)]
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= MAX_KEPT_STEPS
    writer.join()


requests = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 12)), min_size=1, max_size=8)
schedules = st.builds(
    lambda strategy, chunk, rows: ScheduleConfig(
        strategy=strategy,
        template_type="Mix" if strategy == "splitfuse" else "Standard",
        cache_block_size=BLOCK_SIZE,
        max_batch_size=rows,
        max_prefill_batch_size=rows,
        max_prefill_tokens=128,
        split_fuse=SplitFuseConfig(split_chunk_tokens=chunk, split_start_batch_size=0),
    ),
    st.sampled_from(["static", "dynamic", "continuous", "chunked", "splitfuse"]),
    st.sampled_from([16, 32, 64]),
    st.integers(1, 4),
)


@given(schedules, requests, st.integers(8, 20))
def test_explanations_add_up_whatever_runs(
    schedule: ScheduleConfig, sizes: list[tuple[int, int]], num_blocks: int
) -> None:
    many = [request(f"r{i}", *size) for i, size in enumerate(sizes)]
    steps = Clocked(schedule, *many, num_blocks=num_blocks).run(60)

    for step in steps:
        assert step.num_tokens == sum(row.num_tokens for row in step.rows)
        assert step.num_decode_tokens == sum(
            row.num_tokens for row in step.rows if row.kind == "decode"
        )
        kinds = [row.kind for row in step.rows]
        assert kinds == sorted(kinds, key=["decode", "chunk"].index), "decodes come first"
        waits = [*step.skipped, *([step.blocked_by] if step.blocked_by else [])]
        assert all("{" not in wait.text and wait.text.endswith(".") for wait in waits)
        has_reason = bool(waits or step.recomputed)
        assert has_reason or not step.num_waiting, "a sequence waits without a reason"
