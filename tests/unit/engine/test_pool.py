"""The pool of KV blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.kvcache.pool import BlockPool, OutOfBlocks


def test_all_or_nothing_when_blocks_run_out() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(3)

    with pytest.raises(OutOfBlocks, match=r"^2 KV blocks were asked for, 1 are free\.$"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_a_block_given_back_twice_is_a_bug() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(AssertionError, match="given back twice"):
        pool.release(blocks)


@given(st.integers(1, 500), st.integers(1, 8))
def test_blocks_for_is_the_least_that_holds_the_tokens(num_tokens: int, sixteenths: int) -> None:
    size = sixteenths * 16
    blocks = BlockPool(1, size).blocks_for(num_tokens)

    assert (blocks - 1) * size < num_tokens <= blocks * size


@given(st.lists(st.integers(0, 5), max_size=30), st.randoms(use_true_random=False))
def test_free_and_held_are_always_the_total(sizes: list[int], random: object) -> None:
    pool = BlockPool(20, 16)
    held: list[list[int]] = []
    for size in sizes:
        if size > pool.num_free:
            pool.release(held.pop(random.randrange(len(held))))  # type: ignore[attr-defined]
        else:
            held.append(pool.allocate(size))
        pool.check_integrity()
        taken = [block for blocks in held for block in blocks]
        assert len(set(taken)) == len(taken) == pool.num_held
