"""Blocks are handed out, held by several, and taken back; host blocks too."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.keys import KEY_BYTES
from tandem_engine.kvcache.pool import BlockPool, CountedBlocks, OutOfBlocks, _index_of

POOLS = [
    pytest.param(lambda count: BlockPool(count, 16), id="KV blocks"),
    pytest.param(lambda count: BlockPool(count, 16, caches_prefixes=False), id="KV, uncached"),
    pytest.param(HostPool, id="host blocks"),
]


@pytest.mark.parametrize("pool_of", POOLS)
def test_blocks_begin_in_ascending_order(pool_of: Callable[[int], CountedBlocks]) -> None:
    pool = pool_of(4)

    assert pool.allocate(3) == [0, 1, 2]
    assert (pool.num_free, pool.num_held) == (1, 3)


@pytest.mark.parametrize("pool_of", POOLS)
def test_a_table_given_back_comes_again_in_its_order(
    pool_of: Callable[[int], CountedBlocks],
) -> None:
    pool = pool_of(6)
    first, second = pool.allocate(2), pool.allocate(3)
    pool.release(second)
    pool.release(first)

    # The stack is, from the top: 0 1 (given back last), 2 3 4, 5 (never used).
    assert pool.allocate(6) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("pool_of", POOLS)
def test_the_block_given_back_last_is_taken_first(pool_of: Callable[[int], CountedBlocks]) -> None:
    pool = pool_of(4)
    pool.allocate(4)
    for block in (2, 0, 3):
        pool.release([block])

    assert pool.allocate(1) == [3]
    assert pool.allocate(2) == [0, 2]


@pytest.mark.parametrize("pool_of", POOLS)
def test_no_block_is_given_for_none_asked(pool_of: Callable[[int], CountedBlocks]) -> None:
    pool = pool_of(2)

    assert pool.allocate(0) == []
    assert pool.num_free == 2


@pytest.mark.parametrize(
    ("pool", "kind"), [(BlockPool(4, 16), "KV"), (HostPool(4), "host")], ids=["KV", "host"]
)
def test_all_or_nothing_when_blocks_run_out(pool: CountedBlocks, kind: str) -> None:
    pool.allocate(3)

    with pytest.raises(OutOfBlocks, match=rf"^2 {kind} blocks were requested, 1 are free\.$"):
        pool.allocate(2)
    assert (pool.num_free, pool.num_held) == (1, 3)
    pool.check_integrity([[0, 1, 2]])


@pytest.mark.parametrize("pool_of", POOLS)
def test_a_block_given_back_twice_is_a_bug(pool_of: Callable[[int], CountedBlocks]) -> None:
    pool = pool_of(4)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(AssertionError, match="block 0 is given back twice"):
        pool.release(blocks)


def test_a_replica_that_does_not_swap_has_no_host_blocks() -> None:
    pool = HostPool(0)

    with pytest.raises(OutOfBlocks, match=r"^1 host blocks were requested, 0 are free\.$"):
        pool.allocate(1)


@given(st.integers(1, 500), st.integers(1, 8))
def test_blocks_for_is_the_least_that_holds_the_tokens(num_tokens: int, sixteenths: int) -> None:
    size = sixteenths * 16
    blocks = BlockPool(1, size).blocks_for(num_tokens)

    assert (blocks - 1) * size < num_tokens <= blocks * size


def test_no_tokens_need_no_block() -> None:
    assert BlockPool(1, 16).blocks_for(0) == 0


def test_a_shared_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(3, 16)
    blocks = pool.allocate(2)
    pool.share(blocks)
    pool.share(blocks[:1])

    pool.release(blocks)
    assert (pool.num_free, pool.num_held) == (1, 2)
    pool.release(blocks)
    assert (pool.num_free, pool.num_held) == (2, 1)
    pool.release(blocks[:1])
    assert (pool.num_free, pool.num_held) == (3, 0)


def test_a_block_is_shared_while_it_has_two_holders() -> None:
    pool = BlockPool(2, 16)
    (block,) = pool.allocate(1)

    assert not pool.is_shared(block)
    pool.share([block])
    assert pool.is_shared(block)
    pool.release([block])
    assert not pool.is_shared(block)


def test_an_empty_block_cannot_be_shared() -> None:
    pool = BlockPool(2, 16)

    with pytest.raises(AssertionError, match="block 1 is empty and cannot be shared"):
        pool.share([1])


ZERO, TWO = b"0" * KEY_BYTES, b"2" * KEY_BYTES


def lose(pool: BlockPool) -> None:
    pool._empty.pop()


def free_a_held_one(pool: BlockPool) -> None:
    pool._empty.append(0)


def free_one_twice(pool: BlockPool) -> None:
    pool._empty.append(pool._empty[-1])


def invent(pool: BlockPool) -> None:
    pool._empty.append(-1)


def miscount(pool: BlockPool) -> None:
    pool._num_held += 1


def forget_in_the_index(pool: BlockPool) -> None:
    pool._block_of.clear()


def forget_at_the_block(pool: BlockPool) -> None:
    pool._is_sealed[0] = False


def index_another_block(pool: BlockPool) -> None:
    pool._block_of[_index_of(ZERO)] = 1


def give_two_blocks_one_key(pool: BlockPool) -> None:
    pool._keys[KEY_BYTES : 2 * KEY_BYTES] = ZERO
    pool._is_sealed[1] = True
    pool._block_of[_index_of(ZERO)] = 1


def key_an_empty_block(pool: BlockPool) -> None:
    pool._is_sealed[3] = True
    pool._block_of[_index_of(bytes(KEY_BYTES))] = 3


def cache_without_a_key(pool: BlockPool) -> None:
    pool._cached[pool._empty.pop()] = None


DAMAGES = [
    (lose, "block 3 is lost"),
    (free_a_held_one, "block 0 is free and held at once"),
    (free_one_twice, "block 3 is free twice"),
    (invent, "5 KV blocks stand in a pool of 4"),
    (miscount, "2 KV blocks have holders, 3 were counted"),
    (forget_in_the_index, "the index knows 0"),
    (forget_at_the_block, "1 KV blocks have keys of their own, the index knows 2"),
    (index_another_block, "or others"),
    (give_two_blocks_one_key, "shares its key"),
    (key_an_empty_block, "is empty and has a key"),
    (cache_without_a_key, "is cached and has none"),
]


@pytest.mark.parametrize(
    ("damage", "message"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES]
)
def test_the_check_finds(damage: Callable[[BlockPool], None], message: str) -> None:
    pool = BlockPool(4, 16)
    zero, _one, two = pool.allocate(3)
    pool.seal(zero, ZERO)
    pool.seal(two, TWO)
    pool.release([two])
    pool.check_integrity([[0], [1]])

    damage(pool)

    with pytest.raises(AssertionError, match=f"{message}.*this is a bug"):
        pool.check_integrity([[0], [1]])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([[0, 1]], "block 1 stands in 1 block tables and has 2 holders"),
        ([[0, 1], [1, 2]], "block 2 stands in 1 block tables and has 0 holders"),
        ([[0, 1, 1, 1]], "block 1 stands in 3 block tables and has 2 holders"),
        ([[1], [1]], "block 0 stands in 0 block tables and has 1 holders"),
    ],
    ids=["a sharer is missing", "a free block", "one too many", "no table"],
)
def test_the_check_compares_holders_with_tables(tables: list[list[int]], message: str) -> None:
    pool = BlockPool(4, 16)
    pool.allocate(2)
    pool.share([1])
    pool.check_integrity([[0, 1], [1]])

    with pytest.raises(AssertionError, match=message):
        pool.check_integrity(tables)


@given(st.lists(st.integers(0, 5), max_size=30), st.randoms(use_true_random=False))
def test_host_blocks_are_conserved(sizes: list[int], random: object) -> None:
    pool = HostPool(20)
    tables: list[list[int]] = []
    for size in sizes:
        if size > pool.num_free:
            pool.release(tables.pop(random.randrange(len(tables))))  # type: ignore[attr-defined]
        else:
            tables.append(pool.allocate(size))
        pool.check_integrity(tables)
        assert pool.num_free + pool.num_held == 20
        assert pool.num_held == len({block for table in tables for block in table})
