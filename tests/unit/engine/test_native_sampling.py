"""The sampling kernel against the reference in torch: every variant that this CPU runs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.sampling.adjust import adjust
from tandem_engine.sampling.counter_rng import uniform
from tandem_engine.sampling.row import Row, min_p_margin
from tandem_engine.sampling.sampler import Sampler
from tests.unit.engine.native import native_kernels, threads_of
from tests.unit.engine.test_sampling import row

ROUNDING = 1e-6
"""Of the whole mass: so close to a border the two may be on different sides of it."""


@pytest.fixture(params=runnable_variants())
def kernels(request: pytest.FixtureRequest) -> NativeKernels:
    return native_kernels(request.param)


@pytest.fixture(params=[1, 2, 5])
def num_threads(request: pytest.FixtureRequest, kernels: NativeKernels) -> Iterator[int]:
    with threads_of(kernels, request.param):
        yield request.param


def sampler_of(kernels: NativeKernels) -> Sampler:
    return Sampler(kernels.row_sampler())


# ── the reference of the reference: one row in double precision ──────────────────────────────


@dataclass(frozen=True, slots=True)
class Borders:
    """The tokens that one row can draw, in the order of the vocabulary, and the start of each."""

    tokens: Tensor
    ends: Tensor
    """Cumulated weights, the last one 1."""

    def hold(self, token: int, number: float) -> bool:
        """True if `number` draws `token`, but for rounding."""
        found = (self.tokens == token).nonzero().flatten().tolist()
        if not found:
            return False
        end = float(self.ends[found[0]])
        begin = float(self.ends[found[0] - 1]) if found[0] else 0.0
        return begin - ROUNDING <= number <= end + ROUNDING


def borders(logits: Tensor, one: Row, top_p: float) -> Borders:
    """The plain rules on one row of logits that are changed already."""
    params = one.sampling
    best = logits.max()
    floor = (best.double() + min_p_margin(params)).float()
    weights = ((logits.double() - best) / params.temperature).exp()
    weights[logits < floor] = 0.0
    order = torch.where(weights > 0, logits, -torch.inf).sort(descending=True, stable=True).indices
    if params.top_k > 0:
        order = order[: params.top_k]
    before = weights[order].cumsum(0) - weights[order]
    order = order[before < top_p * weights[order].sum()]
    tokens = order.sort().values
    ends = weights[tokens].cumsum(0)
    return Borders(tokens, ends / ends[-1])


def number_of(seed: int, position: int) -> float:
    """The random number of the draw."""
    return uniform(np.array([seed], np.uint64), np.array([position], np.uint64)).item()


def assert_drawn(token: int, logits: Tensor, one: Row) -> None:
    """`token` is what the row's number draws, with top_p as it is or off by rounding."""
    number = number_of(one.seed, one.num_output)
    changed = adjust(logits.unsqueeze(0), [one])[0]
    top_p = one.sampling.top_p
    shares = (top_p,) if top_p == 1.0 else (top_p, top_p * (1 - ROUNDING), top_p * (1 + ROUNDING))
    assert any(borders(changed, one, share).hold(token, number) for share in shares)


# ── any parameters, any logits ───────────────────────────────────────────────────────────────


def row_of_any(draw: st.DrawFn, vocab: int) -> Row:
    tokens = st.integers(0, vocab - 1)
    params: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 1e-4, 0.1, 0.7, 1.0, 3.0, 100.0])),
        "top_k": draw(st.sampled_from([-1, 1, 2, 20, 50, 400, 3000, 15_000, 10**9])),
        "top_p": draw(st.sampled_from([1e-6, 0.05, 0.5, 0.9, 0.95, 0.999, 1.0, 1.0])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.5, 1.0])),
    }
    if draw(st.booleans()):
        params |= {
            "repetition_penalty": draw(st.sampled_from([0.5, 1.0, 1.1])),
            "presence_penalty": draw(st.sampled_from([-2.0, 0.0, 0.3])),
            "frequency_penalty": draw(st.sampled_from([0.0, 0.7, 2.0])),
        }
    if draw(st.booleans()):
        params["logit_bias"] = draw(
            st.dictionaries(tokens, st.sampled_from([-100.0, -0.3, 0.7, 100.0]), max_size=9)
        )
    if draw(st.booleans()):
        params |= {"min_tokens": 3, "stop_token_ids": tuple(draw(st.lists(tokens, max_size=3)))}
    if draw(st.integers(0, 3)) == 0:
        params["logprobs"] = draw(st.sampled_from([0, 1, 20]))
    return row(
        prompt=tuple(draw(st.lists(tokens, min_size=1, max_size=5))),
        output=tuple(draw(st.lists(tokens, max_size=5))),
        seed=draw(st.integers(0, 2**63 - 1)),
        **params,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows and their logits."""

    logits: Tensor
    rows: list[Row]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    vocab = draw(st.sampled_from([1, 2, 15, 16, 17, 511, 512, 513, 700, 1087, 4096, 5000, 20_001]))
    count = draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn(count, vocab, generator=generator)
    for at in range(count):
        kind = draw(st.sampled_from(["spread", "peaked", "ties", "flat", "far", "few", "huge"]))
        spread = {"peaked": 12.0, "flat": 0.0, "far": 60.0, "huge": 1e30}.get(kind, 2.0)
        logits[at] *= spread
        if kind == "ties":
            logits[at].round_()
        if kind == "few":
            hidden = torch.rand(vocab, generator=generator) < 0.99
            hidden[draw(st.integers(0, vocab - 1))] = False
            logits[at, hidden] = -torch.inf
    return Batch(logits, [row_of_any(draw, vocab) for _ in range(count)])


@given(batch=batches())
def test_each_row_gets_the_token_that_its_rules_give(kernels: NativeKernels, batch: Batch) -> None:
    before = batch.logits.clone()
    expected = Sampler().sample(batch.logits, batch.rows)

    got = sampler_of(kernels).sample(batch.logits, batch.rows)

    assert torch.equal(batch.logits, before), "the logits are as they were"
    for one, token, reference, logits in zip(batch.rows, got, expected, before, strict=True):
        assert (token is None) == (reference is None)
        if token is None or reference is None:
            continue
        if one.sampling.is_greedy:
            assert token.token_id == reference.token_id
        elif token.token_id != reference.token_id:
            assert_drawn(token.token_id, logits, one)
        if token.logprob is None or reference.logprob is None:
            assert token.logprob is reference.logprob is None
            continue
        table = torch.log_softmax(logits.double(), -1)
        top = token.logprob.top
        assert math.isclose(
            token.logprob.logprob, float(table[token.token_id]), rel_tol=1e-5, abs_tol=1e-5
        )
        assert len(top) == len(reference.logprob.top)
        by_hand = sorted(range(len(logits)), key=lambda i, row=logits: (-float(row[i]), i))  # type: ignore[misc]
        assert [token_id for token_id, _ in top] == by_hand[: len(top)]
        for token_id, logprob in top:
            assert math.isclose(logprob, float(table[token_id]), rel_tol=1e-5, abs_tol=1e-5)


MANY_WAYS: list[dict[str, object]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 5.0},
    {"top_p": 0.9},
    {"top_p": 0.5},
    {"top_k": 40},
    {"top_k": 20, "top_p": 0.95},
    {"min_p": 0.02},
]


def test_hardly_a_token_is_not_the_references(kernels: NativeKernels) -> None:
    # Of flat rows too, where a border is never far: rounding shows in one of thousands.
    generator = torch.Generator().manual_seed(1)
    differ = 0
    for seed in range(40):
        logits = torch.randn(8, 3000, generator=generator) * (0.5 + seed / 10)
        rows = [
            row(seed=100 * seed + at, **params)  # type: ignore[arg-type]
            for at, params in enumerate(MANY_WAYS)
        ]
        expected = Sampler().sample_step(logits, rows).token_ids
        differ += int((sampler_of(kernels).sample_step(logits, rows).token_ids != expected).sum())

    assert differ <= 1


@pytest.mark.parametrize("sampled", [-9.0, 0.0, 9.0], ids=["least", "as others", "largest"])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 100.0, "top_p": 0.999},
        {"temperature": 100.0, "top_p": 0.9, "min_p": 0.97},
        {"temperature": 100.0, "top_p": 0.3},
        {"top_p": 0.999},
        {"temperature": 100.0, "top_k": 25_000},
        {"temperature": 100.0, "top_k": 5_000, "top_p": 0.95},
        {"top_k": 29_999},
    ],
    ids=str,
)
def test_a_sample_that_misleads_costs_no_token(
    kernels: NativeKernels, sampled: float, params: dict[str, Any]
) -> None:
    # Where a cut is sought first goes by 64 runs of 16 logits: see sampling_sample.h.
    vocab, num_rows = 30_000, 8
    logits = torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(6))
    apart = -(-vocab // 64)
    for begin in range(0, vocab, apart):
        logits[:, begin : begin + 16] += sampled
    rows = [row(seed=at, **params) for at in range(num_rows)]
    expected = Sampler().sample_step(logits.clone(), rows).token_ids

    got = sampler_of(kernels).sample_step(logits, rows).token_ids

    for one, token, reference, of_row in zip(rows, got, expected, logits, strict=True):
        if token != reference:
            assert_drawn(int(token), of_row, one)


@pytest.mark.parametrize("vocab", [600, 30_000])
def test_any_number_of_threads_gives_the_same_tokens(
    kernels: NativeKernels, num_threads: int, vocab: int
) -> None:
    generator = torch.Generator().manual_seed(2)
    params: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"top_p": 0.9, "logprobs": 5},
        {"top_k": 40, "logit_bias": {3: 4.0}},
        {"top_k": 500},
        {"min_p": 0.02, "repetition_penalty": 1.3},
        {"temperature": 100.0, "top_p": 0.99},
    ]
    for count in (1, 2, 3, 7, 12):
        rows = [row(seed=at, **params[at % len(params)]) for at in range(count)]
        logits = torch.randn(count, vocab, generator=generator) * 3
        with threads_of(kernels, 1):
            alone = [
                sampler_of(kernels).sample(logits[at : at + 1], [rows[at]])[0]
                for at in range(count)
            ]

        sampler = sampler_of(kernels)
        assert all(sampler.sample(logits, rows) == alone for _ in range(5)), num_threads


# ── rows that are no numbers ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 517, 1199])
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_k": 900}, {"top_p": 0.9}, {"min_p": 0.1}],
    ids=str,
)
def test_a_row_without_finite_numbers_fails_alone(
    kernels: NativeKernels, wrong: float, column: int, params: dict[str, Any]
) -> None:
    logits = torch.zeros(4, 1200)
    logits[1, column] = wrong
    logits[2] = -torch.inf
    logits[:, 7] += 30.0
    rows = [row(seed=at, logprobs=2, **params) for at in range(4)]

    tokens = sampler_of(kernels).sample(logits, rows)

    assert [token and token.token_id for token in tokens] == [7, None, None, 7]


def test_what_min_tokens_bars_may_be_no_number(kernels: NativeKernels) -> None:
    logits = torch.zeros(1, 40)
    logits[0, 4], logits[0, 9] = math.nan, 5.0
    banned = row(temperature=0.0, stop_token_ids=(4,), min_tokens=1, logprobs=2)

    [token] = sampler_of(kernels).sample(logits, [banned])

    assert token is not None
    assert token.token_id == 9
    assert token.logprob is not None
    assert math.isnan(token.logprob.logprob)
    assert token.logprob.top == ()


# ── what a plan keeps ────────────────────────────────────────────────────────────────────────


def test_a_row_that_grows_is_sampled_as_it_is_now(kernels: NativeKernels) -> None:
    logits = torch.randn(2, 900, generator=torch.Generator().manual_seed(3)) * 2
    rows = [
        row(seed=1, presence_penalty=1.0, min_tokens=4, stop_token_ids=(5, 10**6)),
        row(seed=2, top_p=0.9, frequency_penalty=0.4),
    ]
    native, reference = sampler_of(kernels), Sampler()
    for _ in range(80):  # more than a counted has room for at first
        expected = reference.sample_step(logits, rows).token_ids.tolist()
        assert native.sample_step(logits, rows).token_ids.tolist() == expected
        for one, token in zip(rows, expected, strict=True):
            one.output.append(token)


def test_logits_may_lie_anyhow(kernels: NativeKernels) -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(4))
    rows = [row(seed=at) for at in range(3)]

    got = sampler_of(kernels).sample_step(logits[::2], rows).token_ids

    assert torch.equal(got, Sampler().sample_step(logits[::2].clone(), rows).token_ids)


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000))
@example(2**63 - 1, 0)
def test_the_number_is_that_of_the_reference(
    kernels: NativeKernels, seed: int, position: int
) -> None:
    # Equal weights: the token is the number, cut to so many digits.
    number = number_of(seed, position)

    [token] = sampler_of(kernels).sample(
        torch.zeros(1, 1 << 14), [row(seed=seed, output=(0,) * position)]
    )

    assert token is not None
    assert token.token_id == math.floor(number * (1 << 14))


def test_no_sampler_without_native_kernels() -> None:
    runtime = CpuRuntime(memory_bytes=1 << 30, kernels="reference")

    assert runtime.kernels.row_sampler() is None
