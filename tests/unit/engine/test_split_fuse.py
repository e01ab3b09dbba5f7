"""templateType Mix, parameter by parameter: the tokens of each sequence in each step, by hand."""

from typing import Any

import pytest

from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.reason import Reason
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import Bench, mix, request, standard


def test_decodes_go_first_and_chunks_fill_the_budget() -> None:
    bench = Bench(mix(32), request("a", 40), request("b", 30))

    assert bench.run(4) == [
        {"a": 32},  # the first chunk of a takes the whole budget
        {"a": 8, "b": 24},  # a's last chunk yields its first token; 32 − 8 are left
        {"a": 1, "b": 6},  # a decodes first, b's last chunk behind it: 30 − 24
        {"a": 1, "b": 1},
    ]


def test_only_the_last_chunk_yields_a_token() -> None:
    bench = Bench(mix(32), request("a", 70))  # 32 + 32 + 6

    yields = [[each.sequence_id for each in bench.step().advances] for _ in range(4)]

    assert yields == [[], [], ["a"], ["a"]]


@pytest.mark.parametrize(
    ("chunk", "steps"),
    [
        # One decode, and what is left of splitChunkTokens; 100 = 6·15 + 10 = 3·31 + 7 = 63 + 37.
        (16, [15, 15, 15, 15, 15, 15, 10]),
        (32, [31, 31, 31, 7]),
        (64, [63, 37]),
        (128, [100]),
    ],
)
def test_split_chunk_tokens_is_the_size_of_a_step(chunk: int, steps: list[int]) -> None:
    bench = Bench(mix(chunk), request("a", 4, 40))
    bench.run(1)
    bench.add(request("long", 100))

    assert bench.run(len(steps)) == [{"a": 1, "long": each} for each in steps]


def test_decodes_beyond_the_budget_take_turns() -> None:
    names = [f"r{at:02}" for at in range(20)]
    schedule = mix(16, start=20, schedule={"max_prefill_tokens": 200})
    bench = Bench(schedule, *(request(each, 2, 9) for each in names))
    bench.run(1)  # 20 whole prompts of 2 tokens, below splitStartBatchSize

    # 16 tokens a step for 20 rows: those that were left out go first in the next.
    assert [list(step) for step in bench.run(2)] == [
        names[:16],
        [*names[16:], *names[:12]],
    ]


class TestSplitStart:
    """splitStartBatchSize and splitStartType."""

    def test_prompts_are_whole_until_the_batch_reaches_split_start(self) -> None:
        schedule = mix(16, start=2, schedule={"max_prefill_tokens": 200})
        bench = Bench(schedule, request("a", 50), request("b", 60), request("c", 40))

        assert bench.run(4) == [
            {"a": 50, "b": 60},  # two rows: c would be cut, and 16 tokens are taken already
            {"a": 1, "b": 1, "c": 14},  # 16 − 2
            {"a": 1, "b": 1, "c": 14},
            {"a": 1, "b": 1, "c": 12},  # 40 − 28
        ]

    def test_whole_prompts_share_max_prefill_tokens(self) -> None:
        schedule = mix(16, start=8, schedule={"max_prefill_tokens": 64})
        bench = Bench(schedule, request("a", 40), request("b", 24), request("c", 1))

        # 40 + 24 = 64; c is the 65th. Decodes do not count.
        assert bench.run(2) == [{"a": 40, "b": 24}, {"a": 1, "b": 1, "c": 1}]

    def test_a_prompt_longer_than_max_prefill_tokens_is_cut_before_the_gate_opens(self) -> None:
        schedule = mix(16, start=8, schedule={"max_prefill_tokens": 30})
        bench = Bench(schedule, request("a", 70))

        assert bench.run(3) == [{"a": 30}, {"a": 30}, {"a": 10}]

    @pytest.mark.parametrize(
        ("start_type", "steps"),
        [
            # b is the second row: prompts are split, and 16 − 1 tokens are left. b is gone then.
            pytest.param(False, [{"a": 20}, {"a": 1, "b": 15}, {"c": 16}], id="latched"),
            # The batch is empty when c comes: whole prompts again.
            pytest.param(True, [{"a": 20}, {"a": 1, "b": 15}, {"c": 40}], id="tested again"),
        ],
    )
    def test_split_start_type(self, start_type: bool, steps: list[dict[str, int]]) -> None:
        schedule = mix(
            16, start=1, split_start_type=start_type, schedule={"max_prefill_tokens": 200}
        )
        bench = Bench(schedule, request("a", 20, 2))
        made = bench.run(1)
        bench.add(request("b", 30))
        made += bench.run(1)
        bench.engine.abort("b")
        bench.add(request("c", 40))

        assert made + bench.run(1) == steps

    def test_the_default_fits_a_small_batch(self) -> None:
        # 16 is lowered to maxBatchSize 2: two whole prompts, and no row for a third.
        schedule = mix(16, start=2, schedule={"max_batch_size": 2, "max_prefill_tokens": 100})
        bench = Bench(schedule, *(request(each, 20) for each in "abc"))

        assert bench.run(1) == [{"a": 20, "b": 20}]

    def test_a_tpot_target_splits_at_any_batch_size(self) -> None:
        slo = Slo(tpot=LatencyTarget(target="10s"))
        schedule = mix(16, start=8, schedule={"max_prefill_tokens": 200})
        bench = Bench(schedule, request("a", 40), slo=slo)

        assert bench.run(1) == [{"a": 16}]


class TestSplitType:
    """splitType true: only prompts longer than twice splitChunkTokens are cut."""

    @pytest.mark.parametrize(
        ("split_type", "num_prompt", "steps"),
        [
            (False, 32, [16, 16]),
            (True, 32, [32]),  # 32 = 2 · 16: whole
            (True, 33, [16, 16, 1]),
        ],
    )
    def test_the_limit_is_twice_the_chunk(
        self, split_type: bool, num_prompt: int, steps: list[int]
    ) -> None:
        bench = Bench(mix(16, split_type=split_type), request("a", num_prompt))

        assert bench.run(len(steps)) == [{"a": each} for each in steps]

    def test_a_whole_prompt_begins_only_while_the_step_has_tokens_left(self) -> None:
        bench = Bench(mix(16, split_type=True), request("a", 10), request("b", 30), request("c", 5))

        # 16 − 10 = 6 are left for b, which runs whole; nothing is left for c.
        assert bench.run(2) == [{"a": 10, "b": 30}, {"a": 1, "b": 1, "c": 5}]

    def test_a_prompt_longer_than_any_step_is_cut_all_the_same(self) -> None:
        schedule = mix(32, split_type=True, schedule={"max_prefill_tokens": 40})
        bench = Bench(schedule, request("a", 50))  # at most 2 · 32, and more than 40

        assert bench.run(2) == [{"a": 32}, {"a": 18}]


class TestShares:
    """prefillChunkSize; absent, the budget is shared out."""

    def test_prefill_chunk_size_is_the_most_that_one_prompt_gets(self) -> None:
        bench = Bench(mix(64, prefill_chunk_size=24), request("a", 50), request("b", 50))

        assert bench.run(3) == [
            {"a": 24, "b": 24},
            {"a": 24, "b": 24},
            {"a": 2, "b": 2},
        ]

    def test_one_that_begins_may_take_all_that_is_left(self) -> None:
        # MindIE: without prefillChunkSize the first prompt takes the whole budget.
        bench = Bench(mix(64, prefill_chunk_size=0), request("a", 60), request("b", 60))

        assert bench.run(1) == [{"a": 60, "b": 4}]

    def test_prompts_in_progress_share_evenly_in_whole_tiles(self) -> None:
        bench = Bench(mix(96, prefill_chunk_size=8), *(request(each, 90) for each in "abc"))
        bench.run(1)  # 8 each: three prompts are in progress, with 82 to go
        bench.engine.reconfigure(mix(96))

        assert bench.run(4) == [
            {"a": 32, "b": 32, "c": 32},  # 96 / 3
            {"a": 32, "b": 32, "c": 32},
            {"a": 18, "b": 18, "c": 18},  # 82 − 64
            {"a": 1, "b": 1, "c": 1},
        ]

    def test_an_uneven_share_is_rounded_up_to_a_tile(self) -> None:
        bench = Bench(mix(64, prefill_chunk_size=8), *(request(each, 90) for each in "abc"))
        bench.run(1)
        bench.engine.reconfigure(mix(64))

        # ⌈64 / 3⌉ = 22 → 32; ⌈32 / 2⌉ = 16; 16.
        assert bench.run(1) == [{"a": 32, "b": 16, "c": 16}]


class TestPartialPrefills:
    """maxNumPartialPrefills, longPrefillTokenThreshold, maxLongPartialPrefills."""

    def test_so_many_prompts_are_in_progress(self) -> None:
        schedule = mix(64, prefill_chunk_size=16, max_num_partial_prefills=2)
        bench = Bench(schedule, *(request(each, 20) for each in "abc"))

        assert bench.run(3) == [
            {"a": 16, "b": 16},
            {"a": 4, "b": 4},  # both are in progress until the step is computed
            {"a": 1, "b": 1, "c": 16},
        ]

    def test_short_ones_pass_long_ones(self) -> None:
        schedule = mix(
            64,
            prefill_chunk_size=16,
            long_prefill_token_threshold=30,
            max_long_partial_prefills=1,
        )
        bench = Bench(schedule, *(request(*each) for each in (("a", 31), ("b", 31), ("c", 30))))

        first = bench.run(1)

        # 31 > 30 is long, 30 is not: b is skipped, and does not block c.
        assert first == [{"a": 16, "c": 16}]
        assert bench.record.skipped == (("b", Reason.LONG_PREFILLS),)
        assert bench.record.blocked_by is None
        assert bench.run(2) == [{"a": 15, "c": 14}, {"a": 1, "c": 1, "b": 16}]

    def test_what_the_prefix_cache_has_does_not_count(self) -> None:
        schedule = mix(64, long_prefill_token_threshold=30, max_long_partial_prefills=1)
        again = request("again", 0, prompt=request("a", 48).prompt_token_ids)
        bench = Bench(schedule, request("a", 48, 1))
        bench.finish()
        bench.add(request("b", 100), request("c", 31), again)

        # 48 tokens: all of them are found, and 1 is computed, which makes it a short one. c is not.
        assert bench.run(1) == [{"b": 64}]
        assert bench.run(1) == [{"again": 1, "b": 36}]
        assert bench.run(1) == [{"again": 1, "b": 1, "c": 31}]


def test_max_prefill_batch_size_counts_the_prompts_of_a_step() -> None:
    schedule = mix(32, schedule={"max_prefill_batch_size": 1})
    bench = Bench(schedule, request("a", 4), request("b", 4))

    assert bench.run(2) == [{"a": 4}, {"a": 1, "b": 4}]


def test_max_prefill_batch_size_counts_every_choice() -> None:
    schedule = mix(64, schedule={"max_prefill_batch_size": 3})
    bench = Bench(schedule, request("a", 4, n=2), request("b", 4, n=2), request("c", 4))

    # 2 of 3 rows are a's; b needs two, and c stands behind it.
    assert bench.run(1) == [{"a0": 4}]
    assert bench.record.blocked_by is Reason.PREFILL_ROWS


def test_max_batch_size_counts_every_choice() -> None:
    schedule = mix(64, schedule={"max_batch_size": 3, "max_prefill_batch_size": 3})
    bench = Bench(schedule, request("a", 4, 2, n=2), request("b", 4, n=2))

    assert bench.run(3) == [{"a0": 4}, {"a0": 1, "a1": 1}, {"b0": 4}]


def test_a_request_waits_until_its_whole_prompt_has_blocks() -> None:
    bench = Bench(mix(16), request("a", 40), request("b", 40), num_blocks=5)

    assert all("b" not in step for step in bench.run(5))
    assert bench.record.blocked_by is Reason.NO_BLOCKS


def test_a_cached_prompt_computes_one_token() -> None:
    prompt = request("a", 48).prompt_token_ids
    bench = Bench(mix(64), request("a", 48, 1))
    bench.finish()
    bench.add(request("b", 0, prompt=prompt), request("c", 0, prompt=prompt[:40]))

    # b: 3 blocks of 16 are there, and its last token is computed again. c: 40 − 2 · 16.
    assert bench.run(1) == [{"b": 1, "c": 8}]


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    prompt = request("a", 40).prompt_token_ids
    bench = Bench(mix(64), request("a", 40), request("b", 0, prompt=prompt), request("c", 6))

    assert bench.run(2) == [{"a": 40, "c": 6}, {"a": 1, "c": 1, "b": 8}]


@pytest.mark.parametrize(
    ("before", "after", "chunk"),
    [(True, True, 8), (True, False, 40), (False, True, 40), (False, False, 40)],
)
def test_the_prefix_cache_is_a_live_switch(before: bool, after: bool, chunk: int) -> None:
    prompt = request("a", 40).prompt_token_ids
    bench = Bench(mix(64, schedule={"enable_prefix_cache": before}), request("a", 40, 1))
    bench.pool.caches_prefixes = before
    bench.finish()
    bench.engine.reconfigure(mix(64, schedule={"enable_prefix_cache": after}))
    bench.add(request("b", 0, prompt=prompt))

    assert bench.run(1) == [{"b": chunk}]


def test_a_live_change_of_template_goes_on_with_what_was_begun() -> None:
    bench = Bench(mix(32), request("a", 80))
    bench.run(1)
    bench.engine.reconfigure(standard())

    assert bench.run(2) == [{"a": 48}, {"a": 1}]


def drafted(right: tuple[bool, ...] = (True,), **given: Any) -> Bench:
    runner = CountingRunner(block_size=16, right_drafts=right)
    return Bench(mix(16), max_drafts=3, runner=runner, **given)


class TestDrafts:
    """Speculation: 1 … k + 1 tokens a row and step."""

    @pytest.mark.parametrize(
        ("right", "said"),
        [
            # The prompt's step has none; then three drafts, of which 3, 0 or 1 are right.
            ((True,), [1, 4, 4]),
            ((False,), [1, 1, 1]),
            # Output token 1 right, 2 wrong: 2 tokens; 3 right, 4 wrong: 2 tokens.
            ((False, True), [1, 2, 2]),
        ],
    )
    def test_one_to_k_plus_one_are_accepted(self, right: tuple[bool, ...], said: list[int]) -> None:
        bench = drafted(right)
        bench.add(request("a", 4, 20))
        lengths, total = [], 0
        for _ in said:
            bench.step()
            lengths.append(len(bench.said["a"]) - total)
            total = len(bench.said["a"])

        assert lengths == said
        assert bench.said["a"] == list(range(total))

    def test_no_draft_reaches_beyond_the_last_token(self) -> None:
        bench = drafted()
        bench.add(request("a", 4, 7))

        # Outputs 1; then 4; two are missing: one by a draft, one by its own.
        assert bench.run(3) == [{"a": 4}, {"a": 4}, {"a": 2}]
        assert bench.reasons == {"a": "length"}

    def test_drafts_stay_within_the_budget(self) -> None:
        bench = drafted()
        bench.add(*(request(each, 3, 40) for each in "abcde"))

        # 16 tokens: one for each of the five rows, and 11 drafts, 3 a row as long as there are any.
        assert bench.run(2) == [
            dict.fromkeys("abcde", 3),
            {"a": 4, "b": 4, "c": 4, "d": 3, "e": 1},
        ]

    def test_blocks_of_refused_drafts_are_given_back(self) -> None:
        bench = drafted((False,))
        bench.add(request("a", 14, 20))
        held = []
        for _ in range(4):
            bench.step()
            held.append(bench.pool.num_held)

        # Known tokens after each step: 15, 16, 17, 18. Drafts reached 18 in the second one.
        assert held == [1, 1, 2, 2]
