"""Preemption: the victim, the winner and the blocks' way, in cases worked out by hand."""

import pytest

from tandem_engine.scheduler.reason import Reason
from tests.unit.engine.scheduling import Bench, counting, mix, request, standard


def first_preempted(bench: Bench) -> list[str]:
    """Return the first sequences that lose their blocks and are computed again."""
    for _ in range(200):
        lost = bench.step().step.preempted
        if lost:
            return list(lost)
    raise AssertionError("no sequence was preempted")


def test_the_newest_gives_way_when_blocks_run_out() -> None:
    bench = Bench(mix(64), request("a", 16, 20), request("b", 15, 20), num_blocks=3)
    bench.run(1)  # a has one block, b one

    first = bench.step().step  # a grows into the third
    second = bench.step().step  # b needs its second, and is itself the newest

    assert (list(first.sequence_ids), first.preempted) == (["a", "b"], ())
    assert (list(second.sequence_ids), second.preempted) == (["a"], ("b",))
    assert bench.record.blocked_by is Reason.PREEMPTION


def test_a_preempted_sequence_is_computed_again_with_what_it_had_said() -> None:
    schedule = mix(64, schedule={"enable_prefix_cache": False})
    bench = Bench(schedule, request("a", 16, 4), request("b", 15, 6), num_blocks=3)
    made = bench.finish()

    assert bench.said == counting("a", 4) | counting("b", 6)
    # Its prompt; then, once a is gone, the prompt and its two tokens.
    assert [step["b"] for step in made if step.get("b", 0) > 1] == [15, 17]
    assert bench.engine.stats().num_preemptions == 1


@pytest.mark.parametrize(
    ("policy", "victims"),
    [
        # a came first and has priority 5; b has priority 1.
        pytest.param(0, ["b"], id="FCFS"),
        pytest.param(1, ["b"], id="STATE: none was preempted before, so FCFS"),
        pytest.param(2, ["a"], id="PRIORITY"),
        pytest.param(3, ["b"], id="MLFQ: one level, both run, so FCFS"),
    ],
)
def test_decode_policy_type_names_the_victim(policy: int, victims: list[str]) -> None:
    schedule = mix(64, schedule={"decode_policy_type": policy})
    many = request("a", 15, 20), request("b", 15, 20, priority=1)
    bench = Bench(schedule, *many, num_blocks=3)
    lost = first_preempted(bench)

    # Both need a second block for their second token; one is free.
    assert lost == victims


@pytest.mark.parametrize(("policy", "victim"), [(4, "long"), (5, "short"), (7, "long")])
def test_split_fuse_policy_type_names_the_victim_too(policy: int, victim: str) -> None:
    many = request("long", 31, 20), request("short", 15, 20)
    bench = Bench(mix(64, policy_type=policy), *many, num_blocks=4)
    lost = first_preempted(bench)

    assert lost == [victim]


class TestSwaps:
    """maxPreemptCount: so many go to the host in one step, the others are computed again."""

    def three(self, count: int, num_host_blocks: int) -> Bench:
        schedule = standard(max_preempt_count=count)
        many = (request(each, 15, 20) for each in "abc")
        bench = Bench(schedule, *many, num_blocks=4, num_host_blocks=num_host_blocks)
        bench.now = 1.0
        return bench

    @pytest.mark.parametrize(
        ("count", "num_host_blocks", "swapped", "recomputed"),
        [
            pytest.param(0, 8, (), ("d", "c"), id="none is swapped"),
            pytest.param(1, 8, ("d",), ("c",), id="one a step, the second is recomputed"),
            pytest.param(2, 8, ("d", "c"), (), id="both"),
            pytest.param(2, 1, ("d",), ("c",), id="the host has room for one"),
            pytest.param(2, 0, (), ("d", "c"), id="the host has none"),
        ],
    )
    def test_swap_then_recompute(
        self,
        count: int,
        num_host_blocks: int,
        swapped: tuple[str, ...],
        recomputed: tuple[str, ...],
    ) -> None:
        many = (request(each, 16, 8) for each in "abcd")
        schedule = standard(max_preempt_count=count)
        bench = Bench(schedule, *many, num_blocks=5, num_host_blocks=num_host_blocks)
        bench.now = 1.0
        bench.run(1)

        # Each has a full block and needs a second: a takes the free one, b takes d's, c gives way.
        step = bench.step().step

        assert list(step.sequence_ids) == ["a", "b"]
        assert (bench.record.swapped, step.preempted) == (swapped, recomputed)

    def test_what_comes_back_goes_on_where_it_was(self) -> None:
        bench = self.three(3, 8)
        made = bench.finish()

        assert bench.said == counting("abc", 20)
        assert sum(step.get("c", 0) for step in made) == 15 + 19, "nothing is computed twice"
        stats = bench.engine.stats()
        assert stats.num_swaps == stats.num_preemptions > 0
        assert bench.is_empty

    def test_the_swapped_come_back_before_any_new_one_starts(self) -> None:
        bench = self.three(3, 8)
        bench.run(4)
        assert bench.engine.stats().num_swapped == 1
        bench.add(request("new", 3, 2, arrived=0.5))
        made = bench.finish()

        first = {
            each: next(at for at, step in enumerate(made) if each in step) for each in ("c", "new")
        }
        assert first["c"] < first["new"]


class TestPreemptionForStarved:
    """maxFirstTokenWaitTime: a request without blocks for so long takes others'."""

    def starved(self, schedule_of: str, wait_ms: int, **settings: object) -> Bench:
        given = {"max_first_token_wait_time": wait_ms, **settings}
        schedule = mix(64, schedule=given) if schedule_of == "Mix" else standard(**given)
        bench = Bench(schedule, request("a", 40, 60), num_blocks=7)
        bench.now = 1.0
        bench.run(1)
        bench.add(request("b", 60, 2, arrived=1.0))  # 4 blocks and 1 spare; a has 3 or more
        return bench

    @pytest.mark.parametrize("template", ["Mix", "Standard"])
    def test_a_running_sequence_loses_its_blocks(self, template: str) -> None:
        bench = self.starved(template, 2000)
        first_preempted(bench)
        latest_start = bench.record.started

        # It arrived at 1.0; more than 2 s later is 3.25, in steps of 0.25.
        assert latest_start == 3.25
        assert bench.run(1) == [{"b": 60}]

    @pytest.mark.parametrize("template", ["Mix", "Standard"])
    def test_the_loop_does_not_sleep_when_the_only_one_was_evicted(self, template: str) -> None:
        bench = self.starved(template, 0)
        bench.run(1)

        assert not bench.step().step.sequence_ids
        assert bench.engine.wake_at <= bench.now

    def test_a_sequence_preempted_for_a_starved_one_is_not_again(self) -> None:
        bench = self.starved("Mix", 0)
        bench.finish()
        first = bench.engine.stats().num_preemptions
        assert first == 1
        assert bench.said == counting("a", 60) | counting("b", 2)

    def test_no_evict_takes_nothing_from_any(self) -> None:
        bench = self.starved("Mix", 0, no_evict=True)
        bench.finish()

        assert bench.engine.stats().num_preemptions == 0
        assert bench.said == counting("a", 60) | counting("b", 2)


class TestNoEvict:
    """noEvict: prompt and longest output are reserved."""

    def test_it_admits_only_what_fits_to_the_last_token(self) -> None:
        # ⌈(16 + 20) / 16⌉ = 3 blocks each.
        many = [request(each, 16, 20) for each in "abc"]
        bench = Bench(mix(64, schedule={"no_evict": True}), *many, num_blocks=8)

        assert bench.run(1) == [{"a": 16, "b": 16}]  # c would make it 9 of 8
        assert bench.record.blocked_by is Reason.NO_BLOCKS
        bench.finish()
        assert bench.engine.stats().num_preemptions == 0

    def test_without_it_all_start_and_one_gives_way(self) -> None:
        many = [request(each, 16, 20) for each in "abc"]
        bench = Bench(mix(64), *many, num_blocks=8)

        assert bench.run(1) == [{"a": 16, "b": 16, "c": 16}]
        bench.finish()
        assert bench.engine.stats().num_preemptions > 0

    def test_choices_are_counted_together(self) -> None:
        # Full blocks of the prompt are shared: 2 + 3 · (⌈60 / 16⌉ − 2) = 8, and 1 while the rest
        # of the prompt is copied.
        expected = request("a", 40, 20, n=3)

        for num_blocks, fits in ((9, True), (8, False)):
            bench = Bench(mix(64, schedule={"no_evict": True}), num_blocks=num_blocks)
            assert bench.engine.can_ever_hold(expected) is fits

    def test_a_sequence_admitted_before_it_was_switched_on_comes_back(self) -> None:
        many = [request(each, 16, 30) for each in "abc"]
        bench = Bench(mix(64), *many, num_blocks=5)
        first_preempted(bench)
        bench.engine.reconfigure(mix(64, schedule={"no_evict": True}))
        bench.finish()

        assert bench.said == counting("abc", 30)


@pytest.mark.parametrize("decode_policy", [0, 1, 2, 3])
@pytest.mark.parametrize("prefill_policy", [0, 1, 2, 3])
@pytest.mark.parametrize("template", ["Mix", "Standard"])
def test_no_two_requests_evict_each_other_for_ever(
    template: str, prefill_policy: int, decode_policy: int
) -> None:
    given = {"prefill_policy_type": prefill_policy, "decode_policy_type": decode_policy}
    schedule = mix(32, schedule=given) if template == "Mix" else standard(**given)
    many = [
        request(each, 20, 40, priority=1 + at % 5, arrived=at / 8)
        for at, each in enumerate("abcdef")
    ]
    bench = Bench(schedule, *many, num_blocks=5)
    bench.now = 1.0
    bench.finish()

    assert bench.said == counting("abcdef", 40)
    assert bench.is_empty
