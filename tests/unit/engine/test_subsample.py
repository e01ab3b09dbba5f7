"""Some of many rows."""

from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.scheduler.subsample import MAX_ROWS, subsample


def test_few_rows_are_all_sampled() -> None:
    assert list(subsample([])) == []
    assert list(subsample(range(MAX_ROWS))) == list(range(MAX_ROWS))


def test_of_many_every_so_many_th_is() -> None:
    assert list(subsample(range(4 * MAX_ROWS))) == list(range(0, 4 * MAX_ROWS, 4))
    assert list(subsample(range(MAX_ROWS + 1))) == list(range(0, MAX_ROWS + 1, 2))


@given(st.integers(0, 20_000))
def test_it_is_never_more_and_from_end_to_end(count: int) -> None:
    seen = list(subsample(range(count)))

    assert len(seen) <= MAX_ROWS
    assert len(seen) >= min(count, MAX_ROWS // 2)
    assert not count or (seen[0] == 0 and seen[-1] >= count - 1 - count // MAX_ROWS - 1)
