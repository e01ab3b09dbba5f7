"""dp ranks in the scheduler: where a request starts, and whose blocks it takes and gives back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.step import BlockCopy
from tandem_engine.kvcache.host import dp_host_pools
from tandem_engine.kvcache.pool import dp_pools
from tandem_engine.scheduler.reason import Reason
from tests.unit.engine.scheduling import BLOCK_SIZE, Bench, counting, mix, request, standard, tokens


def homes(bench: Bench, *names: str) -> list[int]:
    """The dp rank of each sequence."""
    found = [bench.scheduler._queues.find(name) for name in names]
    return [one.group.dp_rank for one in found if one is not None]


def ranks_of_blocks(bench: Bench, table: tuple[int, ...]) -> set[int]:
    return {block // bench.pool.num_blocks for block in table}


@given(st.integers(1, 5), st.integers(1, 9), st.data())
def test_pools_share_one_range_of_ids(dp: int, num_blocks: int, data: st.DataObject) -> None:
    pools = (*dp_pools(dp, num_blocks, BLOCK_SIZE), *dp_host_pools(dp, num_blocks))
    for at, pool in enumerate(pools):
        first = (at % dp) * num_blocks
        taken = pool.allocate(data.draw(st.integers(0, num_blocks)))
        assert taken == list(range(first, first + len(taken)))
        pool.check_integrity([taken])
        pool.release(taken)
        pool.check_integrity([])
        assert sorted(pool.allocate(num_blocks)) == list(range(first, first + num_blocks))


def test_a_pool_of_a_higher_dp_rank_finds_its_blocks_by_content() -> None:
    _, pool = dp_pools(2, 4, BLOCK_SIZE)
    (block,) = pool.allocate(1)
    pool.seal(block, b"k" * 16)
    pool.release([block])

    assert pool.find([b"k" * 16]) == [block] == [4]
    pool.share([block])
    pool.check_integrity([[block]])
    pool.forget()
    assert pool.find([b"k" * 16]) == []


def test_rows_spread_by_free_blocks() -> None:
    sizes = {"a": 40, "b": 100, "c": 40, "d": 40, "e": 16}
    bench = Bench(mix(512), *(request(name, size) for name, size in sizes.items()), dp=2)
    bench.step()

    # 3 blocks; 7; 3; then 6 are less than 7, so 3 more; and 1 where 7 are held, not 9.
    assert homes(bench, *sizes) == [0, 1, 0, 0, 1]
    assert [pool.num_held for pool in bench.pools] == [9, 8]
    bench.finish()
    assert bench.said == counting(sizes, 8)
    assert bench.is_empty


def test_a_prefix_that_is_there_outweighs_a_shorter_lead_in_free_blocks() -> None:
    first = tokens("common", 5 * BLOCK_SIZE)
    bench = Bench(mix(512), request("a", 0, 40, prompt=first), dp=2)
    bench.run(2)
    bench.add(request("b", 0, 40, prompt=(*first, 1)))
    bench.step()

    assert homes(bench, "a", "b") == [0, 0]
    assert bench.engine.stats().num_hit_tokens == len(first)


def test_a_longer_lead_outweighs_the_prefix_which_is_found_in_its_own_dp_rank_only() -> None:
    first = tokens("common", BLOCK_SIZE)
    bench = Bench(mix(512), request("a", 0, 40, prompt=(*first, *tokens("a", 200))), dp=2)
    bench.run(2)
    bench.add(request("b", 0, 40, prompt=(*first, 1)))
    bench.step()

    assert homes(bench, "a", "b") == [0, 1]
    assert bench.engine.stats().num_hit_tokens == 0


@pytest.mark.parametrize("dp", [1, 2, 3])
def test_no_dp_rank_gives_one_salt_s_blocks_to_another(dp: int) -> None:
    prompt = tokens("same", 5 * BLOCK_SIZE)
    first = [request(f"first {at}", 0, 1, prompt=prompt, salt="a") for at in range(dp)]
    bench = Bench(mix(512), *first, dp=dp)
    bench.finish()
    bench.add(*(request(f"other {at}", 0, 1, prompt=prompt, salt="b") for at in range(dp)))
    bench.step()

    assert bench.record.skipped == ()
    assert bench.engine.stats().num_hit_tokens == 0
    bench.finish()
    bench.add(request("own", 0, 1, prompt=prompt, salt="a"))
    bench.finish()
    assert bench.engine.stats().num_hit_tokens == len(prompt) - 1


def test_equal_prompts_that_come_together_are_computed_once_in_each_dp_rank() -> None:
    prompt = tokens("same", 3 * BLOCK_SIZE)
    bench = Bench(mix(512), *(request(name, 0, prompt=prompt) for name in "abcd"), dp=2)
    bench.step()

    assert homes(bench, "a", "b") == [0, 1]
    assert bench.record.skipped == (("c", Reason.PREFIX_PENDING), ("d", Reason.PREFIX_PENDING))
    bench.step()
    assert homes(bench, *"abcd") == [0, 1, 0, 1]
    assert bench.finish()
    assert bench.said == counting("abcd", 8)


def test_the_victim_is_of_the_dp_rank_that_lacks_blocks() -> None:
    # a and c in the first, b in the second; c is newer than a, d newer than all.
    schedule = mix(512, schedule={"enable_prefix_cache": False})
    sizes = {"a": 31, "b": 31, "c": 31, "d": 15}
    bench = Bench(
        schedule, *(request(name, size, 30) for name, size in sizes.items()), num_blocks=5, dp=2
    )
    bench.step()
    assert homes(bench, *sizes) == [0, 1, 0, 1]

    lost = [name for _ in range(4) for name in bench.step().step.preempted]

    # Four of five blocks are held in the first: a takes the fifth, c none.
    assert lost == ["c"]
    bench.finish()
    assert bench.said == counting(sizes, 30)


def test_a_sequence_that_is_computed_again_may_move() -> None:
    schedule = mix(512, schedule={"enable_prefix_cache": False})
    three = request("a", 31, 30), request("b", 63, 1), request("c", 31, 30)
    bench = Bench(schedule, *three, num_blocks=5, dp=2)
    bench.step()
    assert homes(bench, *"abc") == [0, 0]  # b has ended
    while not bench.step().step.preempted:
        pass
    bench.step()

    # Both needed a block where one was free; the other dp rank was empty.
    assert homes(bench, *"ac") == [0, 1]
    bench.finish()
    assert bench.said == counting("ac", 30) | counting("b", 1)


def test_all_sequences_of_a_request_stay_together() -> None:
    schedule = mix(512, schedule={"enable_prefix_cache": False})
    many = request("n", 20, 30, n=3), request("b", 20, 30, n=2, use_beam_search=True)
    bench = Bench(schedule, *many, num_blocks=9, dp=2)
    for _ in range(100):
        progress = bench.step()
        ranks = {
            name[0]: ranks_of_blocks(bench, tuple(table))
            for name, table in zip(
                progress.step.sequence_ids, progress.step.block_tables, strict=True
            )
        }
        assert all(ranks[name] == {at} for at, name in enumerate("nb") if name in ranks)
        if not bench.engine.has_work:
            break
    assert bench.is_empty


def test_a_swapped_sequence_comes_back_to_its_dp_rank_and_others_go_on() -> None:
    schedule = mix(512, schedule={"enable_prefix_cache": False, "max_preempt_count": 1})
    sizes = {"a": 31, "b": 31, "c": 31}
    bench = Bench(
        schedule,
        *(request(name, size, 30) for name, size in sizes.items()),
        num_blocks=5,
        num_host_blocks=4,
        dp=2,
    )
    copies: list[tuple[BlockCopy, bool]] = []
    while not copies:
        copies += [(one, False) for one in bench.step().step.swapped_out]
    assert homes(bench, "c") == [0]
    # It arrived after c, which waits for blocks of the first: there is room in the second.
    bench.add(request("late", 15, 8, arrived=bench.now))
    step = bench.step().step
    assert "late" in step.sequence_ids
    assert homes(bench, "late") == [1]

    while bench.engine.has_work:
        copies += [(one, True) for one in bench.step().step.swapped_in]

    assert [is_in for _, is_in in copies] == [False, False, True, True]
    assert all(max(one) < 5 for one, _ in copies)
    assert bench.said == counting(sizes, 30) | counting(["late"], 8)


def test_a_request_must_fit_one_dp_rank() -> None:
    bench = Bench(standard(), num_blocks=4, dp=2)

    assert bench.engine.can_ever_hold(request("a", 60, 4))
    assert not bench.engine.can_ever_hold(request("a", 60, 5))


@pytest.mark.parametrize("dp", [1, 2])
def test_no_evict_holds_in_each_dp_rank(dp: int) -> None:
    schedule = mix(512, schedule={"no_evict": True, "enable_prefix_cache": False})
    names = "abcd"
    bench = Bench(schedule, *(request(name, 16, 40) for name in names), num_blocks=5, dp=dp)
    bench.step()

    # Each needs four blocks in the end.
    assert len(bench.record.step.sequence_ids) == dp
    bench.finish()
    assert bench.said == counting(names, 40)
    assert not bench.engine.stats().num_preemptions


def test_the_starved_gets_blocks_of_the_dp_rank_that_is_to_hold_it() -> None:
    schedule = mix(512, schedule={"enable_prefix_cache": False, "max_first_token_wait_time": 1000})
    bench = Bench(schedule, request("a", 40, 60), request("b", 40, 60), num_blocks=8, dp=2)
    bench.step()
    bench.add(request("starved", 70, 4, arrived=bench.now))
    lost = [name for _ in range(8) for name in bench.step().step.preempted]

    # One is enough: the other dp rank is left alone.
    assert len(lost) == 1
    bench.finish()
    assert bench.said == counting("ab", 60) | counting(["starved"], 4)
