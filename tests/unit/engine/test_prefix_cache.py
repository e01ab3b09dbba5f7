"""Blocks are found again by what they hold; cases worked by hand."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.kvcache.keys import (
    KEY_BYTES,
    block_keys,
    last_key,
    next_key,
    root_key,
    split_keys,
)
from tandem_engine.kvcache.pending_blocks import PendingBlocks
from tandem_engine.kvcache.pool import BlockPool, OutOfBlocks

A, B, C, D = (letter * KEY_BYTES for letter in (b"a", b"b", b"c", b"d"))
token_lists = st.lists(st.integers(0, 2), max_size=12)


def sealed(pool: BlockPool, *keys: bytes) -> list[int]:
    """A sequence that computed these blocks and runs."""
    table = pool.allocate(len(keys))
    for block, key in zip(table, keys, strict=True):
        pool.seal(block, key)
    return table


def test_a_block_is_found_while_it_is_held_and_after() -> None:
    pool = BlockPool(4, 16)
    table = sealed(pool, A, B)

    assert pool.find([A, B, C]) == table
    pool.release(table)
    assert pool.find([A, B, C]) == table
    assert (pool.num_free, pool.num_cached, pool.num_held) == (4, 2, 0)


def test_finding_does_not_hold() -> None:
    pool = BlockPool(2, 16)
    pool.release(sealed(pool, A, B))

    pool.find([A, B])

    assert (pool.num_cached, pool.num_held) == (2, 0)


def test_a_block_that_is_not_sealed_is_not_found_and_not_cached() -> None:
    pool = BlockPool(2, 16)
    table = pool.allocate(2)
    pool.seal(table[0], A)
    pool.release(table)

    assert pool.find([A, B]) == table[:1]
    assert (pool.num_free, pool.num_cached) == (2, 1)


def test_a_run_of_keys_ends_at_the_first_hole() -> None:
    pool = BlockPool(4, 16)
    a, b, _c, d = sealed(pool, A, B, C, D)
    pool.release([2])
    assert pool.allocate(1) == [2]  # evicts C

    assert pool.find([A, B, C, D]) == [a, b]
    assert pool.find([C, D]) == []
    assert pool.find([D]) == [d]


def test_empty_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(4, 16)
    pool.release(sealed(pool, A, B))

    assert pool.allocate(3) == [2, 3, 1]
    assert pool.num_evictions == 1
    assert pool.find([A, B]) == [0]


def test_the_block_released_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(3, 16)
    blocks = dict(zip((A, B, C), sealed(pool, A, B, C), strict=True))
    for key in (B, C, A):
        pool.release([blocks[key]])

    for key in (B, C, A):
        assert pool.find([key]) == [blocks[key]]
        assert pool.allocate(1) == [blocks[key]]
        assert pool.find([key]) == []
    assert pool.num_evictions == 3


def test_a_block_used_again_is_as_good_as_new() -> None:
    pool = BlockPool(3, 16)
    blocks = sealed(pool, A, B, C)
    for block in blocks:
        pool.release([block])
    pool.share(blocks[:1])
    pool.release(blocks[:1])

    assert pool.allocate(2) == blocks[1:]
    assert pool.find([A]) == blocks[:1]


def test_the_tail_of_a_sequence_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3, 16)
    pool.release(sealed(pool, A, B, C))

    for kept in ([0, 1], [0], []):
        pool.allocate(1)
        assert pool.find([A, B, C]) == kept


def test_a_whole_sequence_goes_before_one_that_ended_later() -> None:
    pool = BlockPool(4, 16)
    older, newer = sealed(pool, A, B), sealed(pool, C, D)
    pool.release(older)
    pool.release(newer)

    assert pool.allocate(3) == [older[1], older[0], newer[1]]
    assert pool.num_evictions == 3


def test_too_many_blocks_asked_for_evict_nothing() -> None:
    pool = BlockPool(3, 16)
    pool.release(sealed(pool, A, B))
    pool.allocate(1)

    with pytest.raises(OutOfBlocks, match=r"^3 KV blocks were requested, 2 are free\.$"):
        pool.allocate(3)
    assert pool.find([A, B]) == [0, 1]
    assert pool.num_evictions == 0


def test_a_cached_block_that_is_shared_is_held_again() -> None:
    pool = BlockPool(3, 16)
    table = sealed(pool, A, B)
    pool.release(table)

    pool.share(table)

    assert (pool.num_free, pool.num_cached, pool.num_held) == (1, 0, 2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    pool.check_integrity([table])


def test_sharing_takes_from_the_free_blocks_those_without_a_holder() -> None:
    pool = BlockPool(4, 16)
    table = sealed(pool, A, B, C)
    pool.release(table[1:])
    found = pool.find([A, B, C])
    free = pool.num_free

    assert pool.num_unheld(found) == 2
    pool.share(found)
    assert pool.num_free == free - 2
    assert pool.num_unheld(found) == 0


def test_a_key_stays_with_the_first_block_that_has_it() -> None:
    pool = BlockPool(4, 16)
    (first,) = sealed(pool, A)
    (second,) = sealed(pool, A)

    assert pool.find([A]) == [first]
    assert not pool.is_shared(second)
    pool.release([second])
    assert (pool.num_cached, pool.num_free) == (0, 3)
    pool.release([first])
    assert (pool.num_cached, pool.find([A])) == (1, [first])
    pool.check_integrity([])


def test_of_keys_that_begin_alike_the_first_one_is_found_and_the_other_is_not() -> None:
    alike = A[:-1] + b"z"
    pool = BlockPool(4, 16)
    (first,) = sealed(pool, A)

    assert pool.find([alike]) == []
    (second,) = sealed(pool, alike)

    assert (pool.find([A]), pool.find([alike])) == ([first], [])
    assert not pool.is_shared(second)
    pool.check_integrity([[first], [second]])
    pool.release([first])
    pool.release([second])
    assert (pool.num_cached, pool.num_free) == (1, 4)


@pytest.mark.parametrize("key", [b"", A[:-1], A + A], ids=["none", "short", "two"])
def test_what_is_no_key_seals_nothing(key: bytes) -> None:
    pool = BlockPool(2, 16)
    table = pool.allocate(1)

    with pytest.raises(ValueError, match="different"):
        pool.seal(table[0], key)
    assert not pool.is_shared(table[0])
    pool.check_integrity([table])


def test_a_block_sealed_twice_with_one_key_is_sealed() -> None:
    pool = BlockPool(2, 16)
    (block,) = sealed(pool, A)

    pool.seal(block, A)

    assert pool.find([A]) == [block]
    pool.check_integrity([[block]])


def test_a_sealed_block_takes_no_other_key() -> None:
    pool = BlockPool(2, 16)
    (block,) = sealed(pool, A)

    with pytest.raises(AssertionError, match="block 0 is not the sealer's to seal"):
        pool.seal(block, B)
    assert pool.find([B]) == []


def test_a_block_without_a_holder_cannot_be_sealed() -> None:
    pool = BlockPool(2, 16)

    with pytest.raises(AssertionError, match="block 1 is not the sealer's to seal"):
        pool.seal(1, A)


def test_a_sealed_block_must_not_be_written() -> None:
    pool = BlockPool(2, 16)
    (block,) = sealed(pool, A)

    assert pool.is_shared(block)


def test_an_evicted_block_is_written_and_sealed_again() -> None:
    pool = BlockPool(1, 16)
    pool.release(sealed(pool, A))

    (block,) = pool.allocate(1)
    assert not pool.is_shared(block)
    pool.seal(block, B)

    assert pool.find([A]) == []
    assert pool.find([B]) == [block]


def test_switched_off_live_nothing_is_found_and_everything_is_free() -> None:
    pool = BlockPool(4, 16)
    held = sealed(pool, A)
    pool.release(sealed(pool, B, C))

    pool.caches_prefixes = False

    assert not pool.caches_prefixes
    assert [pool.find([key]) for key in (A, B, C)] == [[], [], []]
    assert (pool.num_free, pool.num_cached, pool.num_held) == (3, 0, 1)
    assert not pool.is_shared(held[0])
    pool.seal(held[0], A)
    pool.release(held)
    assert (pool.num_free, pool.num_cached) == (4, 0)
    assert pool.num_evictions == 0
    pool.check_integrity([])


def test_switched_on_again_it_caches_what_comes_then() -> None:
    pool = BlockPool(4, 16)
    pool.caches_prefixes = False
    table = pool.allocate(2)
    pool.seal(table[0], A)

    pool.caches_prefixes = True
    pool.seal(table[1], B)

    assert pool.find([A]) == []
    assert pool.find([B]) == table[1:]


def test_to_forget_leaves_the_cache_on_and_shared_blocks_shared() -> None:
    pool = BlockPool(4, 16)
    table = sealed(pool, A)
    pool.share(table)
    pool.release(sealed(pool, B))

    pool.forget()

    assert pool.find([A]) == pool.find([B]) == []
    assert pool.is_shared(table[0])
    assert pool.num_free == 3
    pool.seal(table[0], A)
    assert pool.find([A]) == table
    pool.check_integrity([table, table])


def as_bytes(*tokens: int) -> bytes:
    return b"".join(token.to_bytes(8, "little") for token in tokens)


def test_a_key_is_the_hash_of_its_parent_and_its_tokens() -> None:
    root = blake2b(b"tenant", digest_size=16, person=b"tandem root").digest()
    first = blake2b(root + as_bytes(7, 70000), digest_size=16).digest()
    second = blake2b(first + as_bytes(0, 1), digest_size=16).digest()

    assert root_key("tenant") == root
    assert block_keys([7, 70000, 0, 1, 5], 2, salt="tenant") == first + second
    assert next_key(root, (7, 70000)) == first


@pytest.mark.parametrize(
    ("num_tokens", "num_keys"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2), (4000, 250)]
)
def test_only_full_blocks_have_keys(num_tokens: int, num_keys: int) -> None:
    keys = block_keys(range(num_tokens), 16)

    assert len(keys) == num_keys * KEY_BYTES
    assert len(list(split_keys(keys))) == num_keys


@pytest.mark.parametrize("tokens", [[1, 2, 3, 4], (1, 2, 3, 4), range(1, 5)], ids=repr)
def test_a_key_does_not_depend_on_the_type_that_holds_the_tokens(
    tokens: list[int] | tuple[int, ...] | range,
) -> None:
    assert block_keys(tokens, 2) == block_keys([1, 2, 3, 4], 2)


SALTS = ["", "a", "b", "ab", "é", "\ud800", "\udfff", "a\0"]


def test_requests_of_different_salts_share_no_key() -> None:
    keys = [key for salt in SALTS for key in split_keys(block_keys(range(64), 16, salt=salt))]

    assert len(set(keys)) == len(keys) == 4 * len(SALTS)


def test_a_salt_cannot_be_made_to_look_like_a_block() -> None:
    content = root_key("") + as_bytes(1, 2)
    block = blake2b(content, digest_size=KEY_BYTES).digest()

    assert block_keys([1, 2], 2) == block
    assert blake2b(content, digest_size=KEY_BYTES, person=b"tandem root").digest() != block


@given(token_lists, token_lists, st.integers(1, 4))
def test_keys_are_equal_as_far_as_whole_blocks_are(
    left: list[int], right: list[int], size: int
) -> None:
    shared = 0
    while left[: shared + size] == right[: shared + size] and shared + size <= len(left):
        shared += size
    pairs = zip(
        split_keys(block_keys(left, size)), split_keys(block_keys(right, size)), strict=False
    )

    equal = [one == other for one, other in pairs]

    assert equal == [True] * (shared // size) + [False] * (len(equal) - shared // size)


@given(token_lists, token_lists, st.integers(1, 4), st.sampled_from(SALTS))
def test_keys_go_on_from_where_they_ended(
    begin: list[int], rest: list[int], size: int, salt: str
) -> None:
    full = len(begin) // size * size
    known = block_keys(begin, size, salt=salt)

    more = block_keys(begin[full:] + rest, size, parent=last_key(known, salt=salt))

    assert known + more == block_keys(begin + rest, size, salt=salt)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.sampled_from(SALTS))
def test_one_block_after_the_other_gives_the_same_keys(tokens: list[int], salt: str) -> None:
    keys = b""
    for token in tokens:
        keys += next_key(last_key(keys, salt=salt), [token])

    assert keys == block_keys(tokens, 1, salt=salt)


@pytest.mark.parametrize("parent", [b"", b"short", bytes(32)])
def test_a_parent_that_is_no_key_is_a_bug(parent: bytes) -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        next_key(parent, [1])


def test_a_parent_of_several_keys_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="has 32 bytes, not 16"):
        block_keys([1], 1, parent=block_keys([1, 2], 1))


def test_the_first_owner_of_a_pending_block_computes_it() -> None:
    pending = PendingBlocks()
    pending.add(A, "first")
    pending.add(A, "second")
    pending.add(B, "second")

    assert pending.owner_of(A) == "first"
    assert pending.owner_of(B) == "second"
    assert pending.owner_of(C) is None
    assert len(pending) == 2


def test_a_block_that_is_complete_is_pending_no_more() -> None:
    pending = PendingBlocks()
    pending.add(A, "first")
    pending.add(B, "first")

    pending.complete(A)
    pending.complete(C)

    assert pending.owner_of(A) is None
    assert pending.owner_of(B) == "first"
    pending.check_integrity()


def test_all_pending_blocks_of_a_sequence_end_at_once() -> None:
    pending = PendingBlocks()
    for key, owner in ((A, "first"), (B, "second"), (C, "first")):
        pending.add(key, owner)

    pending.cancel("first")
    pending.cancel("unknown")

    assert [pending.owner_of(key) for key in (A, B, C)] == [None, "second", None]
    pending.check_integrity()


def test_an_owner_gone_takes_nothing_from_the_next_one() -> None:
    pending = PendingBlocks()
    pending.add(A, "first")
    pending.complete(A)
    pending.add(A, "second")

    pending.cancel("first")

    assert pending.owner_of(A) == "second"
    pending.check_integrity()


def test_nothing_is_left_of_pending_blocks_that_ended() -> None:
    pending = PendingBlocks()
    for number in range(100):
        pending.add(A, str(number))
        pending.add(B, str(number))
        pending.complete(A)
        pending.cancel(str(number)) if number % 2 else pending.complete(B)

    assert len(pending) == 0
    assert pending._keys == {}


def test_pending_blocks_are_cleared_when_nothing_will_be_found() -> None:
    pending = PendingBlocks()
    pending.add(A, "first")

    pending.clear()

    assert pending.owner_of(A) is None
    pending.cancel("first")
    pending.check_integrity()


def test_the_check_finds_a_pending_block_without_an_owner() -> None:
    pending = PendingBlocks()
    pending.add(A, "first")
    pending._keys.clear()

    with pytest.raises(AssertionError, match="this is a bug"):
        pending.check_integrity()


def test_the_check_finds_an_owner_without_a_pending_block() -> None:
    pending = PendingBlocks()
    pending._keys["first"] = set()

    with pytest.raises(AssertionError, match="without a pending block"):
        pending.check_integrity()
