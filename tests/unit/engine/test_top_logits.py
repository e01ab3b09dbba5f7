"""Tokens that are sampled from the largest logits of each share, against those from all."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device.sampling import RowSampler
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.sampler import Sampler
from tandem_engine.sampling.top_logits import (
    ALL_LOGITS,
    MAX_TOP_LOGITS,
    SharedTop,
    TopLogits,
    num_columns,
    num_top_logits,
)
from tests.unit.engine.native import native_kernels
from tests.unit.engine.test_sampling import row


@pytest.fixture(params=["torch", "native"])
def sampler(request: pytest.FixtureRequest) -> RowSampler | None:
    return None if request.param == "torch" else native_kernels().row_sampler()


def shared_out(logits: Tensor, num_shares: int, num_top: int, sampler: RowSampler | None) -> Tensor:
    """Reduced logits of ranks with a share each, of which the last ones may have no token."""
    width = -(-logits.shape[1] // num_shares)
    reducer = TopLogits(num_top, sampler)
    shares = [
        reducer.reduce(logits[:, first : first + width], first)
        for first in range(0, num_shares * width, width)
    ]
    return torch.cat(shares, dim=1)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Tensor, list[Row], int]:
    """Logits with many ties, some of them infinite or no number; their rows; number of shares."""
    vocab, num_shares = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    values = st.one_of(
        st.integers(-6, 6).map(lambda tenths: tenths / 10),
        st.sampled_from([-math.inf, 30.0]),
        st.sampled_from([0.0] * 30 + [math.nan, math.inf]),
    )
    logits, rows = [], []
    for _ in range(draw(st.integers(1, 4))):
        logits.append(draw(st.lists(values, min_size=vocab, max_size=vocab)))
        params: dict[str, Any] = {
            "temperature": draw(st.sampled_from([0.0, 0.3, 1.0, 5.0])),
            "top_k": draw(st.sampled_from([1, 2, 3, 7, 20])),
            "top_p": draw(st.sampled_from([0.2, 0.9, 1.0])),
            "min_p": draw(st.sampled_from([0.0, 0.2])),
        }
        rows.append(row(seed=draw(st.integers(0, 2**64 - 1)), **params))
    return torch.tensor(logits), rows, num_shares


@given(step=steps())
def test_the_same_tokens_are_sampled_as_from_all_logits(
    sampler: RowSampler | None, step: tuple[Tensor, list[Row], int]
) -> None:
    logits, rows, num_shares = step
    num_top = num_top_logits(rows)
    reduced = shared_out(logits, num_shares, num_top, sampler)

    assert reduced.shape[1] == num_columns(
        num_top, num_shares=num_shares, vocab_size=logits.shape[1]
    )
    whole = Sampler(sampler).sample(logits, rows)
    assert Sampler(sampler).sample(reduced, rows, num_top=num_top) == whole


def test_the_first_of_equal_logits_stays_wherever_a_share_ends(sampler: RowSampler | None) -> None:
    logits = torch.zeros(1, 12)
    logits[0, [2, 7, 11]] = 1.0
    top = SharedTop.of(shared_out(logits, 3, 2, sampler), 2)
    assert top.token_ids.tolist() == [[0, 2, 4, 7, 8, 11]]
    assert top.logits.tolist() == [[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]]
    assert Sampler(sampler).sample(
        shared_out(logits, 3, 1, sampler), [row(temperature=0.0)], num_top=1
    ) == [(2, None)]


@pytest.mark.parametrize(
    ("params", "num_top"),
    [
        ({"temperature": 0.0}, 1),
        ({"temperature": 0.0, "top_k": 500}, 1),
        ({"temperature": 1.0, "top_k": 50, "top_p": 0.5}, 50),
        ({"temperature": 1.0, "top_k": MAX_TOP_LOGITS}, MAX_TOP_LOGITS),
        ({"temperature": 1.0, "top_k": MAX_TOP_LOGITS + 1}, ALL_LOGITS),
        ({"temperature": 1.0}, ALL_LOGITS),
        ({"temperature": 1.0, "top_p": 0.9}, ALL_LOGITS),
        ({"temperature": 0.0, "logprobs": 0}, ALL_LOGITS),
        ({"temperature": 0.0, "repetition_penalty": 1.1}, ALL_LOGITS),
        ({"temperature": 0.0, "logit_bias": {3: 1.0}}, ALL_LOGITS),
        ({"temperature": 0.0, "min_tokens": 2}, ALL_LOGITS),
        ({"temperature": 0.0, "use_beam_search": True, "best_of": 2}, ALL_LOGITS),
    ],
)
def test_a_row_that_may_sample_another_token_has_all_logits(
    params: dict[str, Any], num_top: int
) -> None:
    assert num_top_logits([row(**params)]) == num_top
    beside = num_top_logits([row(temperature=1.0, top_k=7), row(**params)])
    assert beside == (ALL_LOGITS if num_top == ALL_LOGITS else max(7, num_top))
