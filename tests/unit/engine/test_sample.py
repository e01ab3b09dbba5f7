"""Some of many rows."""

from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.scheduler.sample import MOST, sample


def test_few_rows_are_all_looked_at() -> None:
    assert list(sample([])) == []
    assert list(sample(range(MOST))) == list(range(MOST))


def test_of_many_every_so_many_th_is() -> None:
    assert list(sample(range(4 * MOST))) == list(range(0, 4 * MOST, 4))
    assert list(sample(range(MOST + 1))) == list(range(0, MOST + 1, 2))


@given(st.integers(0, 20_000))
def test_it_is_never_more_and_from_end_to_end(count: int) -> None:
    seen = list(sample(range(count)))

    assert len(seen) <= MOST
    assert len(seen) >= min(count, MOST // 2)
    assert not count or (seen[0] == 0 and seen[-1] >= count - 1 - count // MOST - 1)
