"""Requests with several sequences: choices of n and best_of, beams, and their ends."""

import pytest

from tandem_engine.scheduler.reason import Reason
from tests.unit.engine.scheduling import Bench, counting, mix, request, standard


def ripe(*many: object, **given: object) -> Bench:
    bench = Bench(standard(**given), *many)  # type: ignore[arg-type]
    bench.now = 1.0
    return bench


class TestChoices:
    """n and best_of: the prompt is computed once, its blocks are shared."""

    @pytest.mark.parametrize(("n", "best_of"), [(3, None), (1, 3)])
    def test_the_prompt_is_computed_once_for_all(self, n: int, best_of: int | None) -> None:
        bench = Bench(mix(64), request("a", 40, 4, n=n, best_of=best_of))

        assert bench.run(2) == [{"a0": 40}, {"a0": 1, "a1": 1, "a2": 1}]
        bench.finish()
        assert bench.said == counting(("a0", "a1", "a2"), 4)
        assert bench.is_empty

    def test_full_blocks_are_shared_and_the_rest_is_copied(self) -> None:
        bench = Bench(mix(64), request("a", 40, 4, n=3))
        bench.run(1)
        held = [bench.pool.num_held]
        copied = bench.step().step.copied

        # 2 full blocks and 8 tokens of a third; three sequences write there, so all of them get
        # one of their own and the first one is given back.
        assert [*held, bench.pool.num_held] == [3, 2 + 3]
        assert len(copied) == 3
        assert len({copy.source for copy in copied}) == 1

    def test_at_the_end_of_a_block_nothing_is_copied(self) -> None:
        bench = Bench(mix(64), request("a", 32, 4, n=3))
        bench.run(1)

        assert bench.step().step.copied == []
        assert bench.pool.num_held == 2 + 3

    def test_only_the_last_chunk_forks_them(self) -> None:
        bench = Bench(mix(32), request("a", 40, 4, n=2))

        assert bench.run(2) == [{"a0": 32}, {"a0": 8}]
        assert bench.said == counting(("a0", "a1"), 1)

    def test_they_end_apart(self) -> None:
        bench = ripe(request("a", 5, 3, n=2))
        bench.run(1)
        bench.engine.abort("a0")

        assert bench.run(2) == [{"a1": 1}, {"a1": 1}]
        assert bench.is_empty

    @pytest.mark.parametrize("gone", [("a1",), ("a0",), ("a0", "a1"), ("a1", "a0")])
    def test_a_choice_that_leaves_before_the_fork_is_not_forked(
        self, gone: tuple[str, ...]
    ) -> None:
        bench = Bench(mix(32), request("a", 40, 3, n=3))
        bench.run(1)
        for each in gone:
            bench.engine.abort(each)
        bench.finish()

        assert bench.said == counting({"a0", "a1", "a2"} - set(gone), 3)
        assert bench.is_empty

    @pytest.mark.parametrize("begun", [False, True])
    def test_when_all_leave_the_prompt_is_given_up(self, begun: bool) -> None:
        bench = Bench(mix(32), request("a", 40, 3, n=3))
        bench.run(int(begun))
        for each in ("a0", "a2", "a1"):
            bench.engine.abort(each)

        assert bench.is_empty

    def test_a_sequence_that_leaves_gives_its_rows_to_others(self) -> None:
        schedule = {"max_batch_size": 3, "max_prefill_batch_size": 3}
        bench = Bench(mix(16, schedule=schedule), request("a", 40, 3, n=3), request("b", 4))
        bench.run(2)
        assert bench.record.blocked_by in {Reason.BATCH_SIZE, Reason.TOKENS}
        bench.engine.abort("a1")

        assert bench.run(1) == [{"a0": 8, "b": 4}]

    def test_choices_that_were_preempted_come_back_one_by_one(self) -> None:
        # 2 + 3 · 2 blocks at their longest; 6 are there.
        bench = Bench(mix(64), request("a", 40, 20, n=3), num_blocks=6)
        bench.finish()

        assert bench.said == counting(("a0", "a1", "a2"), 20)
        assert bench.engine.stats().num_preemptions > 0
        assert bench.is_empty


class TestBeams:
    """Beams are in a step together, or not at all."""

    def alone(
        self, num_prompt: int = 20, num_output: int = 8, width: int = 4
    ) -> dict[str, list[int]]:
        expected = request("a", num_prompt, num_output, n=width, use_beam_search=True)
        bench = Bench(mix(64), expected, num_blocks=200)
        bench.finish()
        return bench.said

    def beams(self, *, width: int = 4, prompt: int = 20, output: int = 8, **given: object) -> Bench:
        schedule = mix(64, schedule=given.pop("schedule", {}))
        expected = request("a", prompt, output, n=width, use_beam_search=True)
        return Bench(schedule, expected, **given)  # type: ignore[arg-type]

    def test_they_move_together_and_answer_at_the_end(self) -> None:
        bench = self.beams()
        made = bench.finish()

        assert made[0] == {"a0": 20}
        assert all(set(step) == {"a0", "a1", "a2", "a3"} for step in made[1:])
        assert len(made) == 8
        assert all(len(said) <= 8 for said in bench.said.values())
        assert set(bench.said) == {"a0", "a1", "a2", "a3"}
        assert bench.is_empty

    def test_one_that_is_aborted_takes_the_others_with_it(self) -> None:
        for steps in (0, 1, 3):
            bench = self.beams()
            bench.run(steps)
            bench.engine.abort("a2")

            assert bench.is_empty

    @pytest.mark.parametrize("cache", [True, False])
    @pytest.mark.parametrize("num_blocks", [8, 9, 12])
    def test_a_pool_that_holds_them_alone_is_enough(self, cache: bool, num_blocks: int) -> None:
        """1 shared block, 4 · 1 of their own, 2 while blocks are copied: 7, and one older."""
        schedule = {"enable_prefix_cache": cache}
        bench = Bench(mix(64, schedule=schedule), num_blocks=num_blocks)
        bench.add(request("older", 14, 60))
        bench.run(1)
        bench.add(request("a", 20, 8, n=4, use_beam_search=True, arrived=0.25))
        bench.finish()

        assert {each: said for each, said in bench.said.items() if each != "older"} == self.alone()
        assert bench.said["older"] == list(range(60))

    def test_beams_that_outnumber_a_lowered_limit_go_on(self) -> None:
        bench = self.beams()
        bench.run(2)
        small = {"max_batch_size": 2, "max_prefill_batch_size": 2}
        bench.engine.reconfigure(mix(64, schedule=small))
        made = bench.finish()

        assert all(len(step) == 4 for step in made)
        assert bench.said == self.alone()

    def test_beams_that_outnumber_the_budget_go_on(self) -> None:
        bench = Bench(mix(16), request("a", 5, 3, n=20, use_beam_search=True))
        bench.finish()

        assert len(bench.reasons) == 20

    @pytest.mark.parametrize("partials", [1, 64])
    @pytest.mark.parametrize("cache", [True, False])
    def test_what_is_computed_again_is_the_same_search(self, cache: bool, partials: int) -> None:
        settings = {"enable_prefix_cache": cache, "max_first_token_wait_time": 0}
        bench = Bench(
            mix(64, schedule=settings, max_num_partial_prefills=partials),
            request("a", 40, 12, n=4, use_beam_search=True),
            num_blocks=14,
        )
        bench.run(4)
        bench.add(request("b", 100, 2, arrived=0.5))  # 7 blocks: it claims those of the beams
        bench.finish()

        assert bench.engine.stats().num_preemptions >= 4
        said = {each: tokens for each, tokens in bench.said.items() if each != "b"}
        assert said == self.alone(40, 12)
        assert bench.is_empty

    def test_two_searches_that_hold_half_of_their_blocks_do_not_wait_for_ever(self) -> None:
        schedule = mix(64, schedule={"enable_prefix_cache": False, "max_first_token_wait_time": 0})
        many = [request(each, 30, 20, n=4, use_beam_search=True) for each in "ab"]
        bench = Bench(schedule, *many, num_blocks=18)
        bench.run(3)
        bench.add(request("c", 200, 2, arrived=0.5))
        bench.finish()

        assert len(bench.reasons) == 9
        assert bench.is_empty

    def test_one_beam_is_a_search_too(self) -> None:
        """Runners answer with candidates for it, as for all beams."""
        bench = Bench(mix(64), request("a", 5, 3, n=1, use_beam_search=True))
        bench.finish()

        assert bench.reasons == {"a": "length"}


class TestEnds:
    """take_ended tells every id once, however a sequence ended."""

    def test_every_id_is_told_once(self) -> None:
        bench = Bench(mix(64))
        scheduler = bench.scheduler
        for each in (
            request("done", 5, 1),
            request("choices", 5, 3, n=3),
            request("beams", 5, 3, n=2, use_beam_search=True),
            request("waits", 900, 3),
        ):
            scheduler.add(each)
        scheduler.abort("waits")
        scheduler.abort("waits")
        scheduler.abort("choices1")
        scheduler.abort("choices0")
        scheduler.abort("unknown")
        told = scheduler.take_ended()
        scheduler.abort("beams1")
        told += scheduler.take_ended()
        scheduler.abort("choices2")
        scheduler.abort("done")
        told += scheduler.take_ended()

        assert sorted(told) == [
            "beams0",
            "beams1",
            "choices0",
            "choices1",
            "choices2",
            "done",
            "waits",
        ]
        assert not scheduler.has_work

    def test_the_first_one_is_told_when_it_is_not_needed_any_more(self) -> None:
        bench = Bench(mix(64), request("a", 5, 2, n=2))
        bench.scheduler.abort("a0")
        assert bench.scheduler.take_ended() == []
        bench.scheduler.abort("a1")

        assert sorted(bench.scheduler.take_ended()) == ["a0", "a1"]
