"""The KV cache of a draft model: what it holds of a sequence is what was computed of it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tandem_engine.speculation.draft_cache import IDLE_ROUNDS, DraftCache

BLOCK_SIZE = 4


def draft(cache: DraftCache, name: str, prompt: int, output: list[int], guesses: list[int]) -> int:
    """Draft once for a sequence; return the tokens that had to be computed before the guesses."""
    num_known = prompt + len(output)
    start = cache.follow(name, prompt, output)
    assert cache.reserve(name, num_known + len(guesses), {name})
    cache.note(name, num_known, guesses)
    return num_known - start


def test_right_guesses_need_not_be_computed_again() -> None:
    cache = DraftCache(8, BLOCK_SIZE)

    assert draft(cache, "a", 5, [7], [8, 9, 10]) == 6
    # The last guess was never computed: it was only guessed.
    assert draft(cache, "a", 5, [7, 8, 9, 10, 11], [12, 13, 14]) == 2
    assert draft(cache, "a", 5, [7, 8, 9, 10, 11, 12, 99], [1, 2, 3]) == 1


def test_guesses_are_kept_until_a_token_comes() -> None:
    cache = DraftCache(8, BLOCK_SIZE)
    draft(cache, "a", 5, [7], [8, 9])

    assert cache.known_drafts("a", 6) == [8, 9]
    assert not cache.known_drafts("a", 7)
    assert not cache.known_drafts("b", 6)


def test_a_prompt_is_caught_up_on_in_parts() -> None:
    cache = DraftCache(8, BLOCK_SIZE)

    assert cache.follow("a", 20, [1]) == 0
    cache.note("a", 8)
    assert cache.follow("a", 20, [1]) == 8
    # Tokens that came meanwhile are caught up on, too.
    assert cache.follow("a", 20, [1, 2, 3]) == 8


def test_sequences_that_were_not_used_for_longest_give_their_blocks() -> None:
    cache = DraftCache(4, BLOCK_SIZE)
    draft(cache, "a", 7, [1], [])
    draft(cache, "b", 7, [1], [])
    for _ in range(IDLE_ROUNDS):
        cache.begin_round()
        cache.follow("a", 7, [1])
    cache.follow("c", 7, [1])

    assert cache.reserve("c", 8, {"c"})
    assert "b" not in cache
    assert "a" in cache
    cache.follow("d", 12, [1])
    # a was drafted for lately, though it is not in this round.
    assert not cache.reserve("d", 13, {"c", "d"})
    assert not cache.reserve("d", 13, {"a", "c", "d"})
    cache.check_integrity()


class Drafting(RuleBasedStateMachine):
    """Sequences grow, are drafted for, and end, in a cache that does not hold all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = DraftCache(6, BLOCK_SIZE)
        self.output: dict[str, list[int]] = {}
        # What is in the cache of each sequence, token by token.
        self.computed: dict[str, list[int]] = {}

    @rule(
        name=st.sampled_from("abc"),
        news=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        guesses=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        budget=st.integers(1, 12),
        idle=st.sampled_from([0, 1, IDLE_ROUNDS]),
    )
    def step(
        self, name: str, news: Sequence[int], guesses: list[int], budget: int, idle: int
    ) -> None:
        for _ in range(idle):
            self.cache.begin_round()
        prompt = 3
        output = self.output.setdefault(name, [])
        if prompt + len(output) + len(news) > 20:
            return
        output += news
        known = [9] * prompt + output
        start = self.cache.follow(name, prompt, output)
        assert start < len(known)
        if name not in self.cache:
            self.computed.pop(name, None)
        held = self.computed.get(name, [])[:start]
        assert held == known[:start]
        blocks = self.cache.reserve(name, len(known) + len(guesses), {name})
        assert not blocks or len(blocks) * BLOCK_SIZE >= len(known) + len(guesses)
        self.computed = {one: held for one, held in self.computed.items() if one in self.cache}
        if not blocks:
            return
        end = min(len(known), start + budget)
        if end < len(known):
            self.cache.note(name, end)
            self.computed[name] = known[:end]
        else:
            self.cache.note(name, len(known), guesses)
            self.computed[name] = known + guesses[:-1]

    @rule(name=st.sampled_from("abc"))
    def end(self, name: str) -> None:
        self.cache.forget(name)
        self.output.pop(name, None)
        self.computed.pop(name, None)

    @invariant()
    def no_block_is_lost(self) -> None:
        self.cache.check_integrity()


TestDrafting = Drafting.TestCase


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_what_is_kept_is_a_beginning_of_the_output(said: list[int], guesses: list[int]) -> None:
    cache = DraftCache(8, BLOCK_SIZE)
    cache.follow("a", 2, [])
    cache.reserve("a", 10, {"a"})
    cache.note("a", 2, guesses)

    start = cache.follow("a", 2, said)

    kept = max(0, start - 2)
    assert guesses[:kept] == said[:kept]
    assert start <= 2 + len(guesses)
