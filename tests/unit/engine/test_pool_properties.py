"""Whatever sequences do, blocks are conserved, and a block found holds what its key says.

A state machine drives the pool as a scheduler would, beside a naive model of it that predicts
every block id, and beside the contents that a device would have in its blocks.
"""

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tandem_engine.kvcache.keys import block_keys, split_keys
from tandem_engine.kvcache.pool import BlockPool, OutOfBlocks

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=5)
picks = st.integers(0, 7)
salts = st.sampled_from(["", "tenant"])


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A sequence: a token fills a block, so that a table is as long as the text."""

    tokens: list[int]
    salt: str
    table: list[int]
    num_computed: int

    @property
    def keys(self) -> list[bytes]:
        return list(split_keys(block_keys(self.tokens, 1, salt=self.salt)))

    def content(self, index: int) -> str:
        """Return the content of the block at `index` of the table once it is computed."""
        return f"{self.salt}:{self.tokens[: index + 1]}"


@dataclass(slots=True, kw_only=True)
class NaivePool:
    """Model of the pool in its simplest form: lists, searched from end to end."""

    holders: list[int]
    empty: list[int]
    cached: list[int] = field(default_factory=list)
    keys: dict[int, bytes] = field(default_factory=dict)
    num_evictions: int = 0
    caches: bool = True

    def allocate(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            if self.empty:
                block = self.empty.pop()
            else:
                block = self.cached.pop(0)
                del self.keys[block]
                self.num_evictions += 1
            assert self.holders[block] == 0
            self.holders[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.cached:
                self.cached.remove(block)
            self.holders[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in blocks[::-1]:
            self.holders[block] -= 1
            assert self.holders[block] >= 0
            if self.holders[block] == 0:
                (self.cached if block in self.keys else self.empty).append(block)

    def seal(self, block: int, key: bytes) -> None:
        if self.caches and key not in self.keys.values():
            self.keys[block] = key

    def find(self, keys: list[bytes]) -> list[int]:
        found = []
        for key in keys:
            holding = [block for block, known in self.keys.items() if known == key]
            if not holding:
                break
            found += holding
        return found

    def forget(self) -> None:
        self.keys.clear()
        self.empty += self.cached
        self.cached.clear()


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, compute, fork, roll back and go; blocks are scarce."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 1)
        self.model = NaivePool(holders=[0] * num_blocks, empty=list(range(num_blocks))[::-1])
        self.live: list[Row] = []
        self.contents = ["nothing"] * num_blocks
        self.num_writes = 0

    def allocate(self, count: int) -> list[int]:
        held = {block for row in self.live for block in row.table}
        blocks = self.pool.allocate(count)
        assert blocks == self.model.allocate(count)
        assert held.isdisjoint(blocks)
        assert len(set(blocks)) == count
        return blocks

    def share(self, blocks: list[int]) -> None:
        self.pool.share(blocks)
        self.model.share(blocks)

    def release(self, blocks: list[int]) -> None:
        self.pool.release(blocks)
        self.model.release(blocks)

    def pick(self, number: int) -> Row:
        return self.live[number % len(self.live)]

    @rule(tokens=prompts, salt=salts, ends=st.booleans())
    def admit(self, tokens: list[int], salt: str, ends: bool) -> None:
        """A prompt: what is there is shared, the rest is allocated, if it fits.

        Every other request runs to its end at once: much is cached, and little is held.
        """
        row = Row(tokens=tokens, salt=salt, table=[], num_computed=0)
        found = self.pool.find(row.keys)
        assert found == self.model.find(row.keys)
        assert [self.contents[block] for block in found] == [
            row.content(index) for index in range(len(found))
        ]
        missing = len(tokens) - len(found)
        if missing > self.pool.num_free - self.pool.num_unheld(found):
            return
        self.share(found)
        row.table = found + self.allocate(missing)
        row.num_computed = len(found)
        self.live.append(row)
        if ends:
            self.compute_next(row, missing)
            self.leave(row)

    @precondition(lambda self: self.live)
    @rule(pick=picks, count=st.integers(1, 5))
    def compute(self, pick: int, count: int) -> None:
        """A chunk of the prompt, or a decode."""
        self.compute_next(self.pick(pick), count)

    def compute_next(self, row: Row, count: int) -> None:
        """The next blocks; one that another sequence reads is replaced first."""
        for index in range(row.num_computed, len(row.table))[:count]:
            if self.pool.is_shared(row.table[index]):
                if not self.pool.num_free:
                    return
                # What it held does not matter here, a block's whole content is computed.
                self.replace(row, index)
            self.write(row, index)

    def replace(self, row: Row, index: int) -> None:
        """Copy on write, less the copy."""
        self.release([row.table.pop(index)])
        row.table[index:index] = self.allocate(1)

    def write(self, row: Row, index: int) -> None:
        block = row.table[index]
        assert sum(other.table.count(block) for other in self.live) == 1
        assert self.model.holders[block] == 1
        assert block not in self.model.keys
        # First half a block, as in the step before it is full: none may find that.
        self.num_writes += 1
        self.contents[block] = f"half written {self.num_writes}"
        self.check_contents()
        self.contents[block] = row.content(index)
        row.num_computed += 1
        self.pool.seal(block, row.keys[index])
        self.model.seal(block, row.keys[index])

    @precondition(lambda self: self.live and self.pool.num_free)
    @rule(pick=picks, token=st.integers(0, 1))
    def grow(self, pick: int, token: int) -> None:
        """Decode: one block more, even if it costs a cached one."""
        row = self.pick(pick)
        row.table += self.allocate(1)
        row.tokens.append(token)

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        """A second choice, or a beam: all blocks are shared."""
        row = self.pick(pick)
        self.share(row.table)
        twin = dataclasses.replace(row, tokens=list(row.tokens), table=list(row.table))
        self.live.append(twin)

    @precondition(lambda self: self.live)
    @rule(pick=picks, count=st.integers(1, 3))
    def roll_back(self, pick: int, count: int) -> None:
        """Refused drafts: the last blocks go back."""
        row = self.pick(pick)
        kept = max(1, len(row.table) - count)
        self.release(row.table[kept:])
        del row.table[kept:]
        del row.tokens[kept:]
        row.num_computed = min(row.num_computed, kept)

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        self.leave(self.pick(pick))

    def leave(self, row: Row) -> None:
        self.live.remove(row)
        self.release(row.table)

    @rule(more=st.integers(1, 3))
    def ask_for_too_much(self, more: int) -> None:
        with pytest.raises(OutOfBlocks):
            self.pool.allocate(self.pool.num_free + more)

    @rule(expected=st.sampled_from([True, True, False]))
    def switch(self, expected: bool) -> None:
        self.pool.caches_prefixes = expected
        self.model.caches = expected
        if not expected:
            self.model.forget()

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        self.model.forget()

    @invariant()
    def check_contents(self) -> None:
        """A block holds what its key says, for as long as it has the key."""
        for row in self.live:
            for block, key in zip(row.table, row.keys, strict=True):
                if self.pool.find([key]) == [block]:
                    assert self.contents[block] == row.content(row.keys.index(key))
            for index, block in enumerate(row.table[: row.num_computed]):
                assert self.contents[block] == row.content(index)

    @invariant()
    def check_blocks(self) -> None:
        """No block is lost, and the pool is what the model is."""
        self.pool.check_integrity([row.table for row in self.live])
        assert self.pool.num_free + self.pool.num_held == self.pool.num_blocks
        assert self.pool.num_free == len(self.model.empty) + len(self.model.cached)
        assert self.pool.num_cached == len(self.model.cached)
        assert self.pool.num_held == sum(count > 0 for count in self.model.holders)
        assert self.pool.num_evictions == self.model.num_evictions
        assert [self.pool.is_shared(block) for block in range(self.pool.num_blocks)] == [
            holders > 1 or block in self.model.keys
            for block, holders in enumerate(self.model.holders)
        ]

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for row in self.live:
            self.pool.release(row.table)
        self.pool.check_integrity([])
        assert self.pool.num_free == self.pool.num_blocks


PoolMachine.TestCase.settings = settings(stateful_step_count=40)
TestPool = PoolMachine.TestCase
