"""How often Python collects garbage while an engine serves."""

import gc
from collections.abc import Iterator

import pytest

from tandem_engine.async_engine.gc_threshold import GC_THRESHOLD, raise_gc_threshold


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "after"),
    [(700, GC_THRESHOLD), (GC_THRESHOLD + 1, GC_THRESHOLD + 1), (0, 0)],
    ids=["more seldom", "as seldom as set", "never stays never"],
)
def test_it_becomes_no_more_frequent(before: int, after: int) -> None:
    gc.set_threshold(before, 12, 13)

    raise_gc_threshold()

    assert gc.get_threshold() == (after, 12, 13)
