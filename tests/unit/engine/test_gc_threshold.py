"""How often Python collects garbage while an engine serves."""

import gc
from collections.abc import Iterator

import pytest

from tandem_engine.async_engine.gc_threshold import (
    GC_THRESHOLD,
    SECOND_GC_THRESHOLD,
    raise_gc_threshold,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((700, 12), (GC_THRESHOLD, SECOND_GC_THRESHOLD)),
        ((700, SECOND_GC_THRESHOLD + 1), (GC_THRESHOLD, SECOND_GC_THRESHOLD + 1)),
        ((GC_THRESHOLD + 1, 12), (GC_THRESHOLD + 1, 12)),
        ((0, 12), (0, 12)),
    ],
    ids=["more seldom", "middle as seldom as set", "as seldom as set", "never stays never"],
)
def test_it_becomes_no_more_frequent(before: tuple[int, int], after: tuple[int, int]) -> None:
    gc.set_threshold(*before, 13)

    raise_gc_threshold()

    assert gc.get_threshold() == (*after, 13)
