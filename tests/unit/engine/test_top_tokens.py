"""The top tokens of rows are those that a sort of the vocabulary has first."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.sampling.top_tokens import TopTokens

VALUES = st.sampled_from((-torch.inf, -2.0, -1.0, 0.0))
"""Few, so that many are equal."""
TABLES = st.integers(1, 12).flatmap(
    lambda width: st.lists(
        st.tuples(st.lists(VALUES, min_size=width, max_size=width), st.integers(0, width)),
        min_size=1,
        max_size=4,
    )
)


@given(rows=TABLES)
def test_equal_tokens_come_in_the_order_of_the_vocabulary(
    rows: list[tuple[list[float], int]],
) -> None:
    top = TopTokens(torch.tensor([values for values, _ in rows]), [count for _, count in rows])

    assert top.read() == [
        sorted(enumerate(values), key=lambda pair: (-pair[1], pair[0]))[:count]
        for values, count in rows
    ]


def test_a_row_with_nan_has_none() -> None:
    table = torch.tensor([[torch.nan] * 3, [0.0, 1.0, 0.5]])

    assert TopTokens(table, [2, 2]).read() == [[], [(1, 1.0), (2, 0.5)]]
