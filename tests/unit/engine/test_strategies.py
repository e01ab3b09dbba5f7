"""The strategies of templateType Standard: the tokens of each sequence in each step, by hand."""

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.policies.stages import Stage, StageView
from tandem_engine.scheduler.policies.stages.stage_policies import LeastLaxity
from tandem_engine.scheduler.reason import Reason
from tests.unit.engine.scheduling import Bench, request, standard, tokens


class TestStatic:
    """maxBatchSize requests form a batch; all of them end before the next forms."""

    def test_a_full_batch_forms_at_once_and_ends_as_one(self) -> None:
        schedule = standard(strategy="static", max_batch_size=2, max_prefill_batch_size=2)
        many = [request("a", 5, 1), request("b", 6, 3), request("c", 7, 1), request("d", 8, 1)]
        bench = Bench(schedule, *many)

        # a ends with its first token; c waits until b has its third.
        assert bench.run(3) == [{"a": 5, "b": 6}, {"b": 1}, {"b": 1}]
        assert bench.record.blocked_by is Reason.BATCH_NOT_OVER
        assert bench.run(1) == [{"c": 7, "d": 8}]

    def test_a_batch_that_is_not_full_waits_for_max_first_token_wait_time(self) -> None:
        schedule = standard(strategy="static", max_batch_size=2, max_first_token_wait_time=1500)
        bench = Bench(schedule, request("a", 5, arrived=0.25))
        bench.now = 0.5

        assert bench.run(1) == [{}]
        assert bench.record.blocked_by is Reason.BATCH_FORMING
        assert bench.engine.wake_at == 1.75  # 0.25 + 1.5
        bench.now = 1.75
        assert bench.run(1) == [{"a": 5}]

    def test_prompts_that_do_not_fit_one_step_still_join_their_batch(self) -> None:
        schedule = standard(strategy="static", max_batch_size=3, max_prefill_tokens=16)
        bench = Bench(schedule, request("a", 9), request("b", 9), request("c", 20))

        # 9 + 9 > 16; 20 > 16 runs alone. Decodes begin when all prompts are done.
        assert bench.run(4) == [{"a": 9}, {"b": 9}, {"c": 20}, {"a": 1, "b": 1, "c": 1}]


class TestDynamic:
    """As static, or maxQueueDelayMicroseconds after the first request."""

    def test_a_batch_forms_when_its_first_request_has_waited(self) -> None:
        schedule = standard(
            strategy="dynamic", max_batch_size=4, max_queue_delay_microseconds=500_000
        )
        bench = Bench(schedule, request("a", 5), request("b", 6, arrived=0.25))
        bench.now = 0.25

        assert bench.run(1) == [{}]
        assert bench.engine.wake_at == 0.5
        bench.now = 0.5
        assert bench.run(1) == [{"a": 5, "b": 6}]

    def test_a_full_batch_does_not_wait(self) -> None:
        schedule = standard(
            strategy="dynamic", max_batch_size=2, max_queue_delay_microseconds=500_000
        )
        bench = Bench(schedule, request("a", 5), request("b", 6))

        assert bench.run(1) == [{"a": 5, "b": 6}]

    def test_a_request_that_comes_while_a_batch_runs_waits_for_its_end(self) -> None:
        schedule = standard(strategy="dynamic", max_batch_size=4, max_queue_delay_microseconds=500)
        bench = Bench(schedule, request("a", 5, 3))
        bench.now = 1.0
        made = bench.run(1)
        bench.add(request("b", 6, arrived=1.125))

        assert made + bench.run(3) == [{"a": 5}, {"a": 1}, {"a": 1}, {"b": 6}]


class TestContinuous:
    """Prefill steps with whole prompts, and decode steps."""

    def ripe(self, *many: tuple[str, int], **settings: object) -> Bench:
        bench = Bench(standard(**settings), *(request(*each) for each in many))
        bench.now = 1.0  # older than any queue delay
        return bench

    def test_whole_prompts_go_before_decodes(self) -> None:
        bench = self.ripe(("a", 40), ("b", 20), ("c", 30), max_prefill_tokens=64)

        # 40 + 20 = 60; c would make it 90.
        assert bench.run(3) == [{"a": 40, "b": 20}, {"c": 30}, {"a": 1, "b": 1, "c": 1}]

    def test_max_prefill_tokens_is_filled_to_the_last_token(self) -> None:
        bench = self.ripe(("a", 40), ("b", 24), ("c", 1), max_prefill_tokens=64)

        assert bench.run(1) == [{"a": 40, "b": 24}]

    def test_a_prompt_longer_than_max_prefill_tokens_runs_alone(self) -> None:
        bench = self.ripe(("a", 40), ("b", 8), max_prefill_tokens=16)

        assert bench.run(2) == [{"a": 40}, {"b": 8}]

    @pytest.mark.parametrize(
        ("rows", "steps"),
        [(1, [["a"], ["b"], ["c"]]), (2, [["a", "b"], ["c"]]), (0, [["a", "b", "c"]])],
    )
    def test_max_prefill_batch_size_closes_a_prefill_step(
        self, rows: int, steps: list[list[str]]
    ) -> None:
        bench = self.ripe(("a", 4), ("b", 4), ("c", 4), max_prefill_batch_size=rows)

        assert [list(step) for step in bench.run(len(steps))] == steps

    def test_max_prefill_batch_size_counts_every_choice(self) -> None:
        schedule = standard(max_prefill_batch_size=3)
        bench = Bench(schedule, request("a", 4, n=2), request("b", 4, n=2), request("c", 4))
        bench.now = 1.0

        # a stands for 2 rows; b would make 4. Then b and c are 3.
        assert bench.run(2) == [{"a0": 4}, {"b0": 4, "c": 4}]

    def test_no_more_than_max_batch_size_run(self) -> None:
        schedule = standard(max_batch_size=2, max_prefill_batch_size=2)
        bench = Bench(schedule, *(request(each, 4, 2) for each in "abc"))
        bench.now = 1.0

        assert bench.run(3) == [{"a": 4, "b": 4}, {"a": 1, "b": 1}, {"c": 4}]

    def test_a_request_with_more_choices_than_max_batch_size_runs_alone(self) -> None:
        bench = Bench(standard(), request("a", 4, 3, n=3), request("b", 4, 1))
        bench.engine.reconfigure(standard(max_batch_size=2, max_prefill_batch_size=2))
        bench.now = 1.0

        # Two rows a step: the third choice takes its turn in the next. b waits for a row.
        assert bench.run(5) == [
            {"a0": 4},
            {"a0": 1, "a1": 1},
            {"a2": 1, "a0": 1},
            {"a1": 1, "a2": 1},
            {"b": 4},
        ]

    def test_after_a_limit_is_lowered_all_running_go_on_decode_order(self) -> None:
        bench = self.ripe(*((each, 4) for each in "abcde"))
        bench.run(1)
        bench.engine.reconfigure(standard(max_batch_size=2, max_prefill_batch_size=2))

        assert [list(step) for step in bench.run(4)] == [
            ["a", "b"],
            ["c", "d"],
            ["e", "a"],
            ["b", "c"],
        ]


class TestQueueDelay:
    """maxQueueDelayMicroseconds (MindIE's parameter)."""

    def test_the_oldest_waits_for_company_so_long(self) -> None:
        schedule = standard(max_queue_delay_microseconds=500_000)
        bench = Bench(schedule, request("a", 5), request("b", 6, arrived=0.25))
        bench.now = 0.25

        assert bench.run(1) == [{}]
        assert bench.engine.wake_at == 0.5
        assert bench.run(1) == [{"a": 5, "b": 6}]

    def test_a_full_prefill_batch_is_ripe_at_once(self) -> None:
        schedule = standard(max_queue_delay_microseconds=500_000, max_prefill_batch_size=2)
        bench = Bench(schedule, request("a", 5), request("b", 6))

        assert bench.run(1) == [{"a": 5, "b": 6}]

    def test_at_5000_microseconds_or_less_only_age_counts(self) -> None:
        schedule = standard(max_queue_delay_microseconds=5000, max_prefill_batch_size=2)
        bench = Bench(schedule, request("a", 5), request("b", 6))

        assert bench.run(1, seconds=0.005) == [{}]
        assert bench.run(1) == [{"a": 5, "b": 6}]

    def test_decodes_do_not_stand_still_meanwhile(self) -> None:
        schedule = standard(max_queue_delay_microseconds=500_000)
        bench = Bench(schedule, request("a", 5))
        bench.now = 1.0
        bench.run(1)
        bench.add(request("b", 6, arrived=1.25))

        assert bench.run(3) == [{"a": 1}, {"a": 1}, {"b": 6}]  # at 1.25, 1.5, 1.75

    def test_one_that_came_late_to_the_queue_is_not_forgotten(self) -> None:
        """Arrivals are stamped before they are queued: the later one may be queued first."""
        schedule = standard(max_queue_delay_microseconds=500_000)
        bench = Bench(schedule, request("b", 5, arrived=0.25), request("a", 6, arrived=0.0))
        bench.engine.abort("b")

        assert bench.run(1) == [{}]
        assert bench.engine.wake_at == 0.5
        bench.now = 0.5
        assert bench.run(1) == [{"a": 6}]


class TestStages:
    """stageSelectPolicy in the loop; its formulas have tests of their own."""

    def waiting_beside_running(self, running: int, **settings: object) -> Bench:
        schedule = standard(
            max_batch_size=10,
            max_prefill_batch_size=10,
            **settings,
        )
        bench = Bench(schedule, *(request(f"r{at}", 2, 60) for at in range(running)))
        bench.now = 1.0
        bench.run(1)
        bench.add(request("new", 5))
        return bench

    @pytest.mark.parametrize(
        ("running", "decodes"),
        [
            # Cost 150·R against 50·(10 − R) more each step.
            pytest.param(2, 0, id="300 against 400"),
            pytest.param(5, 2, id="750 against 250, 500, 750"),
            pytest.param(8, 11, id="1200 against 100 a step: the twelfth"),
        ],
    )
    def test_throughput_first_prefills_when_the_waste_reaches_the_cost(
        self, running: int, decodes: int
    ) -> None:
        bench = self.waiting_beside_running(running, stage_select_policy=1)

        assert ["new" in step for step in bench.run(decodes + 1)] == [False] * decodes + [True]

    def test_support_select_batch_is_its_older_name(self) -> None:
        bench = self.waiting_beside_running(5, support_select_batch=True)

        assert ["new" in step for step in bench.run(3)] == [False, False, True]

    def test_only_the_ratio_of_the_two_times_counts(self) -> None:
        bench = self.waiting_beside_running(
            5, stage_select_policy=1, prefill_time_ms_per_req=600, decode_time_ms_per_req=200
        )

        assert ["new" in step for step in bench.run(3)] == [False, False, True]

    def test_prefill_first_does_not_let_it_wait(self) -> None:
        assert "new" in self.waiting_beside_running(8).run(1)[0]

    def test_least_laxity_first_decodes_while_the_prompt_has_time(self) -> None:
        bench = self.waiting_beside_running(
            5, stage_select_policy=2, prefill_expected_time=10000, decode_expected_time=5
        )

        # Age 1.25 s of 10 s: laxity 0.87; a decode of 5 rows takes 3.5 ms of 5: laxity 0.3.
        assert "new" not in bench.run(1)[0]
        bench.now = 8.0  # laxity 0.2
        assert "new" in bench.run(1)[0]

    def test_a_policy_sees_what_waits_and_what_decodes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loads: list[tuple[StepLoad, StepLoad]] = []

        def note(_: LeastLaxity, view: StageView, _schedule: ScheduleConfig) -> Stage:
            loads.append((view.waiting_load(), view.decode_load()))
            return "prefill" if len(loads) == 1 else "decode"

        monkeypatch.setattr(LeastLaxity, "choose", note)
        bench = self.waiting_beside_running(2, stage_select_policy=2)
        bench.add(request("newer", 3))
        bench.run(1)

        waiting, decoding = loads[-1]
        assert (waiting.num_tokens, waiting.num_rows) == (5 + 3, 2)
        assert waiting.chunk_context == (5 * 5 + 3 * 3) / 2
        # Prompts of two tokens, each with its first answer.
        assert (decoding.num_tokens, decoding.num_rows) == (2, 2)
        assert decoding.decode_context == 3 + 3


class TestChunked:
    """Chunks of maxPrefillTokens and decodes in turn."""

    def test_steps_of_chunks_and_of_decodes_alternate(self) -> None:
        schedule = standard(strategy="chunked", max_prefill_tokens=20)
        bench = Bench(schedule, request("a", 10, 20), request("b", 45))

        assert bench.run(7) == [
            {"a": 10, "b": 10},
            {"a": 1},
            {"b": 20},
            {"a": 1},
            {"b": 15},  # 45 − 10 − 20
            {"a": 1, "b": 1},
            {"a": 1, "b": 1},
        ]

    def test_chunks_follow_each_other_while_none_decodes(self) -> None:
        bench = Bench(standard(strategy="chunked", max_prefill_tokens=20), request("a", 45))

        assert bench.run(4) == [{"a": 20}, {"a": 20}, {"a": 5}, {"a": 1}]

    def test_a_step_of_decodes_says_why_none_starts(self) -> None:
        schedule = standard(strategy="chunked", max_prefill_tokens=20)
        bench = Bench(schedule, request("a", 20), request("b", 10))

        assert bench.run(2) == [{"a": 20}, {"a": 1}]
        assert bench.record.blocked_by is Reason.OTHER_STAGE
        assert bench.run(1) == [{"b": 10}]


def test_a_prompt_that_the_cache_has_is_counted_once_in_a_static_batch() -> None:
    prompt = tokens("p", 16)
    bench = Bench(standard(strategy="static", max_batch_size=4, max_prefill_batch_size=4))
    bench.now = 10.0  # none waits for more requests
    bench.add(request("a", 0, 2, prompt=prompt))
    bench.finish()
    bench.add(request("b", 0, 2, prompt=prompt))
    bench.run(1)

    # Its last token alone is computed: a decode row from the first step on.
    load = bench.record.load
    assert (load.num_rows, load.num_tokens, load.decode_context) == (1, 1, 16)
