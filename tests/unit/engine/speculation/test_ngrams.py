"""Lookup of n-grams: what is found stood there, and memory has a bound."""

from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.speculation.ngram_drafter import NgramDrafter
from tandem_engine.speculation.ngrams import NgramTable
from tandem_engine.speculation.written_texts import WrittenTexts

SIZES = (4, 3, 2)
TEXTS = st.lists(st.integers(0, 3), max_size=120)


def table_of(*parts: list[int], capacity: int = 1000) -> NgramTable:
    table = NgramTable(SIZES, capacity=capacity)
    for part in parts:
        table.extend(part)
    return table


@given(TEXTS, st.integers(1, 6))
def test_the_longest_ngram_is_continued_as_it_was_last(text: list[int], count: int) -> None:
    found = table_of(text).continuation(text, count)

    expected: list[int] = []
    for size in SIZES:
        starts = [
            at for at in range(size, len(text)) if text[at - size : at] == text[len(text) - size :]
        ]
        if starts:
            behind = text[starts[-1] :]
            expected = [behind[at % len(behind)] for at in range(count)]
            break
    assert found == expected


@given(st.lists(TEXTS, max_size=6))
def test_a_text_is_indexed_alike_however_it_comes(parts: list[list[int]]) -> None:
    whole = [token for part in parts for token in part]

    at_once, bit_by_bit = table_of(whole), table_of(*([token] for token in whole))

    for end in range(len(whole)):
        tail = whole[:end]
        assert at_once.continuation(tail, 3) == bit_by_bit.continuation(tail, 3)
        assert at_once.continuation(tail, 3) == table_of(*parts).continuation(tail, 3)


def test_a_phrase_that_repeats_itself_goes_on() -> None:
    assert table_of([7, 8, 9, 7, 8]).continuation([7, 8], 5) == [9, 7, 8, 9, 7]


def test_what_is_shorter_than_asked_for_is_not_looked_up() -> None:
    text = [1, 2, 5, 1, 2]

    assert table_of(text).continuation(text, 2, shortest=3) == []
    assert table_of(text).continuation(text, 2) == [5, 1]


@given(st.lists(TEXTS, max_size=20), st.integers(2, 40))
def test_a_table_keeps_no_more_than_its_capacity(parts: list[list[int]], capacity: int) -> None:
    table = table_of(*parts, capacity=capacity)

    assert len(table) <= capacity
    assert all(0 <= place < max(1, len(table)) for place in table._behind.values())


def request(prompt: list[int], salt: str = "") -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=50),
        max_new_tokens=50,
        stop_token_ids=frozenset(),
        seeds=(0,),
        cache_salt=salt,
    )


def test_an_answer_copies_from_its_prompt_and_from_itself() -> None:
    drafter = NgramDrafter()
    asked = request([1, 2, 3, 4, 5, 6, 7, 8, 50, 1, 2])

    assert drafter.propose("a", asked, [3], 4) == [4, 5, 6, 7]
    assert drafter.propose("a", asked, [3, 9, 9, 1], 4) == []
    output = [3, 9, 9, 1, 60, 61, 62, 63, 9, 1]
    assert drafter.propose("a", asked, output, 3) == [60, 61, 62]


def test_what_another_request_wrote_is_continued_for_its_tenant_alone() -> None:
    drafter = NgramDrafter()
    drafter.propose("a", request([1, 2, 3, 4]), [10, 11, 12, 13], 4)
    drafter.forget("a", request([1, 2, 3, 4]), [10, 11, 12, 13, 14, 15])

    assert drafter.propose("b", request([9, 10, 11, 12]), [13], 4)[:2] == [14, 15]
    assert drafter.propose("c", request([9, 10, 11, 12], salt="other"), [13], 4) == []


def test_a_first_token_is_guessed_from_what_followed_the_same_prompt() -> None:
    drafter = NgramDrafter()
    drafter.forget("a", request([1, 2, 3, 4]), [10, 11])

    assert drafter.propose("b", request([8, 2, 3, 4]), [10], 1) == [11]


def test_a_sequence_that_has_ended_is_forgotten() -> None:
    drafter = NgramDrafter()
    asked = request([1, 2, 3, 1, 2])
    assert drafter.propose("a", asked, [3], 1)

    drafter.forget("a", asked, [3])
    drafter.forget("a", asked, [3])

    assert drafter._own == {}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 90)), max_size=40))
def test_texts_of_all_tenants_together_have_a_bound(added: list[tuple[str, int]]) -> None:
    texts = WrittenTexts(most_tokens=200)
    for salt, count in added:
        texts.add(salt, [1, 2, 3, 4, 5], list(range(count)))

    assert len(texts) <= 200
    assert len(texts) == sum(map(len, texts._tables.values()))


def test_the_tenant_that_was_away_for_longest_goes_first() -> None:
    texts = WrittenTexts(most_tokens=100)
    for salt in "abc":
        texts.add(salt, [1, 2, 3, 4], list(range(50, 90)))

    assert texts.continuation("a", [1, 2, 3, 4], 1) == []
    assert texts.continuation("c", [1, 2, 3, 4], 1) == [50]
