"""Sampling, against plain formulas row by row: in torch, and by every native variant."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.sampling import RowSampler
from tandem_engine.sampling.candidates import candidates_of
from tandem_engine.sampling.counter_rng import derive_seed, uniform
from tandem_engine.sampling.row import Row, row_of
from tandem_engine.sampling.sampler import Sampler
from tests.unit.engine.native import native_kernels

VOCAB = 24


def row(
    *,
    prompt: tuple[int, ...] = (1, 2),
    output: tuple[int, ...] = (),
    seed: int = 0,
    **sampling: object,
) -> Row:
    params = SamplingParams(max_tokens=64, **sampling)  # type: ignore[arg-type]
    made = row_of(
        Request(
            request_id="r",
            prompt_token_ids=prompt,
            sampling=params,
            max_new_tokens=64,
            stop_token_ids=frozenset(params.stop_token_ids),
            seeds=(seed,),
        )
    )
    made.output += output
    return made


class Samplers:
    """Makes samplers of the kind that the tests run on."""

    native: RowSampler | None = None

    def __call__(self) -> Sampler:
        return Sampler(self.native)


new_sampler = Samplers()


@pytest.fixture(scope="module", params=["reference", *runnable_variants()], autouse=True)
def _kind(request: pytest.FixtureRequest) -> Iterator[None]:
    is_native = request.param != "reference"
    new_sampler.native = native_kernels(request.param).row_sampler() if is_native else None
    yield
    new_sampler.native = None


def sample(logits: torch.Tensor, rows: list[Row]) -> list[int]:
    return [token.token_id for token in new_sampler().sample(logits, rows) if token is not None]


def allowed_by_hand(logits: list[float], params: SamplingParams) -> set[int]:
    """The tokens that temperature, top_k, top_p and min_p leave, in plain Python."""
    largest = max(logits)
    weights = [math.exp((x - largest) / params.temperature) for x in logits]
    weights = [w if w >= params.min_p else 0.0 for w in weights]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    if params.top_k > 0:
        order = order[: params.top_k]
    total = sum(weights[i] for i in order)
    kept: set[int] = set()
    before = 0.0
    for i in order:
        if weights[i] > 0 and (before < params.top_p or not kept):
            kept.add(i)
        before += weights[i] / total
    return kept


logit_lists = st.lists(
    st.integers(-60, 60).map(lambda x: x / 8), min_size=VOCAB, max_size=VOCAB, unique=True
)


@given(
    logits=logit_lists,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 1, 3, 100]),
    top_p=st.sampled_from([0.013, 0.517, 0.913, 1.0]),
    min_p=st.sampled_from([0.0, 0.0531, 0.531]),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_drawn_token_passed_every_filter(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    drawn = row(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    [token] = sample(torch.tensor([logits]), [drawn])

    assert token in allowed_by_hand(logits, drawn.sampling)


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.0, math.log(2), math.log(5), -torch.inf]])
    counts = Counter(
        sample(logits, [row(output=(0,) * position, seed=7)])[0] for position in range(4000)
    )

    assert counts[3] == 0
    for token, share in ((0, 1 / 8), (1, 2 / 8), (2, 5 / 8)):
        assert abs(counts[token] / 4000 - share) < 0.03


@given(st.integers(0, 2**63 - 1), st.integers(0, 5), st.integers(1, 6))
def test_a_seed_gives_the_same_token_whatever_else_is_in_the_batch(
    seed: int, position: int, others: int
) -> None:
    generator = torch.Generator().manual_seed(seed % 1000)
    logits = torch.randn(others + 1, VOCAB, generator=generator)
    mine = row(output=(0,) * position, seed=seed, top_p=0.9)
    crowd = [row(seed=index, temperature=0.5, top_k=3) for index in range(others)]
    alone = sample(logits[:1], [mine])[0]

    assert sample(logits, [mine, *crowd])[0] == alone
    assert sample(logits.flip(0), [*crowd, mine])[-1] == alone


@pytest.mark.parametrize("own", [{"top_k": 20}, {"top_p": 0.9}, {"top_k": 30, "top_p": 0.5}])
@pytest.mark.parametrize("mate", [{"top_k": 500}, {"top_p": 0.999}, {"top_k": 1}])
def test_among_equally_likely_tokens_the_first_ones_stay_whatever_else_is_in_the_batch(
    own: dict[str, object], mate: dict[str, object]
) -> None:
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        # A few values only: there are many equals, wherever a filter cuts.
        logits = torch.randint(0, 9, (2, 2000), generator=generator).float() / 2
        mine = {"seed": seed, "temperature": 1.0, **own}
        alone = sample(logits[:1], [row(**mine)])  # type: ignore[arg-type]
        beside = sample(logits, [row(**mine), row(seed=seed + 1, temperature=1.0, **mate)])  # type: ignore[arg-type]

        assert beside[0] == alone[0]
        params = SamplingParams(max_tokens=64, temperature=1.0, **own)  # type: ignore[arg-type]
        assert alone[0] in allowed_by_hand(logits[0].tolist(), params)


def test_greedy_and_drawn_rows_stand_side_by_side() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 5] = 3.0

    assert sample(logits, [row(temperature=0.0), row(top_k=1)]) == [5, 5]


@given(
    logits=logit_lists,
    output=st.lists(st.integers(0, VOCAB - 1), max_size=8),
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0.0, 1.5, -1.0]),
    frequency=st.sampled_from([0.0, 0.5]),
)
def test_penalties_are_the_textbooks(
    logits: list[float], output: list[int], repetition: float, presence: float, frequency: float
) -> None:
    penalised = row(
        prompt=(1, 2, 3),
        output=tuple(output),
        temperature=0.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    expected = list(logits)
    for token in {1, 2, 3, *output}:
        x = expected[token]
        expected[token] = x / repetition if x > 0 else x * repetition
    for token, count in Counter(output).items():
        expected[token] -= frequency * count + presence
    [token] = sample(torch.tensor([logits]), [penalised])

    assert expected[token] >= max(expected) - 1e-4


def test_bias_and_min_tokens_change_the_choice() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[:, 4] = 2.0
    rows = [
        row(temperature=0.0, logit_bias={9: 50.0}),
        row(temperature=0.0, stop_token_ids=(4,), min_tokens=1),
        row(temperature=0.0, stop_token_ids=(4,), min_tokens=1, output=(7,)),
    ]
    logits[1, 8] = 1.0

    assert sample(logits, rows) == [9, 8, 4]
    assert logits[0, 9] == 0.0, "the model's own logits are not changed"


@pytest.mark.parametrize(
    ("own", "logit", "token"),
    [
        # vLLM's order: (0 + 5) / 2 is less than 3; penalised first it were 0 / 2 + 5.
        ({"repetition_penalty": 2.0}, 0.0, 8),
        # (-4 + 5) / 0.25 is more than 3; penalised first it were -4 * 0.25 + 5, too.
        ({"repetition_penalty": 0.25}, -4.0, 9),
        ({"repetition_penalty": 0.25, "presence_penalty": 1.5}, -4.0, 8),
    ],
)
def test_a_bias_comes_before_penalties(own: dict[str, Any], logit: float, token: int) -> None:
    logits = torch.full((1, VOCAB), -50.0)
    logits[0, 8], logits[0, 9] = 3.0, logit
    biased = row(temperature=0.0, logit_bias={9: 5.0}, output=(9,), **own)

    assert sample(logits, [biased]) == [token]


def test_what_a_row_asks_for_is_put_into_tensors_once(monkeypatch: pytest.MonkeyPatch) -> None:
    biased = row(temperature=0.0, logit_bias={9: 5.0}, stop_token_ids=(4,), min_tokens=9)
    logits, sampler = torch.randn(1, VOCAB), new_sampler()
    sampler.sample(logits, [biased])
    made: list[object] = []

    def tensor(*given: Any, **options: Any) -> torch.Tensor:
        made.append(given)
        return torch.as_tensor(*given, **options)

    monkeypatch.setattr(torch, "tensor", tensor)
    for position in range(5):
        biased.output.append(position)
        sampler.sample(logits, [biased])

    assert made == []


def test_rows_whose_plan_failed_are_not_sampled_by_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler, rows = new_sampler(), [row(temperature=0.0), row(temperature=0.0)]
    logits = torch.zeros(2, VOCAB)
    logits[0, 3] = logits[1, 5] = 1.0
    sampler.sample(logits[:1], rows[:1])

    with monkeypatch.context() as broken:
        broken.setattr(sampler, "_new_plan", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            sampler.sample(logits, rows)

    sampled = sampler.sample(logits, rows)
    assert [token and token.token_id for token in sampled] == [3, 5]


def test_what_a_row_asks_for_stays_while_others_come_and_go() -> None:
    biased, sampler = row(logit_bias={9: 5.0, 3: -1.0}), new_sampler()
    sampler.sample(torch.randn(1, VOCAB), [biased])
    params = biased.device_params

    sampler.sample(torch.randn(2, VOCAB), [row(seed=1), biased])

    assert biased.device_params is params
    assert biased.with_output([3]).device_params is params
    assert (params.biased.tolist(), params.biases.tolist()) == ([9, 3], [5.0, -1.0])


class Work:
    """Counts the values that are sorted, by any function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("topk", "sort"):
            monkeypatch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **options: Any) -> Any:
            result = method(*given, **options)
            self.count += result[0].numel()
            return result

        return counting

    def of(self, logits: torch.Tensor, rows: list[Row]) -> int:
        before = self.count
        Sampler().sample(logits, rows)
        return self.count - before


def test_a_row_that_needs_many_candidates_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(6, 20_000, generator=torch.Generator().manual_seed(0)) * 5
    logits[2] = 0.0  # top_p needs nearly all of its tokens
    rows = [row(seed=seed, top_p=0.95) for seed in range(5)] + [row(top_k=9000)]
    work = Work(monkeypatch)

    together = work.of(logits, rows)
    alone = [work.of(logits[at : at + 1], [rows[at]]) for at in range(6)]

    assert together <= sum(alone)
    assert max(alone[:2]) < min(alone[2], alone[5]) / 10


def test_logprobs_are_the_models_own() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    asks = row(temperature=0.0, logprobs=3, logit_bias={7: 100.0})
    [token] = new_sampler().sample(logits, [asks])
    table = torch.log_softmax(logits[0], -1)

    assert token is not None
    assert token.logprob is not None
    assert token.token_id == 7
    assert math.isclose(token.logprob.logprob, table[7].item(), abs_tol=1e-6)
    best = table.topk(3)
    assert [i for i, _ in token.logprob.top] == best.indices.tolist()
    assert np.allclose([p for _, p in token.logprob.top], best.values.tolist())


def test_a_row_without_numbers_gives_no_token_and_disturbs_no_other() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, 3] = torch.nan
    logits[2, 6] = 1.0
    rows = [row(seed=1), row(seed=2), row(temperature=0.0)]
    tokens = new_sampler().sample(logits, rows)

    assert tokens[1] is None
    assert tokens[0] is not None
    assert tokens[2] is not None
    assert tokens[2].token_id == 6


coarse_logits = st.lists(st.integers(-3, 3).map(float), min_size=VOCAB, max_size=VOCAB)


@given(first=coarse_logits, second=coarse_logits, width=st.integers(1, 14))
def test_candidates_are_the_likeliest_tokens_and_equals_stand_by_token_id(
    first: list[float], second: list[float], width: int
) -> None:
    beams = [
        row(use_beam_search=True, n=width, temperature=0.0),
        row(use_beam_search=True, n=2, stop_token_ids=(3, 4), min_tokens=1, logit_bias={5: 0.5}),
    ]
    second_by_hand = list(second)
    second_by_hand[5] += 0.5
    got = candidates_of(torch.tensor([first, second]), beams)

    assert got[0] is not None
    assert got[1] is not None
    order = sorted(range(VOCAB), key=lambda token: (-first[token], token))
    assert [each.token_id for each in got[0]] == order[: 2 * width]
    total = math.log(sum(math.exp(x) for x in first))
    for each in got[0]:
        assert math.isclose(each.logprob, first[each.token_id] - total, abs_tol=1e-5)
    allowed = [token for token in range(VOCAB) if token not in (3, 4)]
    order = sorted(allowed, key=lambda token: (-second_by_hand[token], token))
    assert [each.token_id for each in got[1]] == order[:4]


def test_tokens_that_cannot_come_are_no_candidates() -> None:
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[0, 7] = logits[0, 2] = 1.0
    logits[1, 3] = torch.nan
    got = candidates_of(logits, [row(use_beam_search=True, n=4) for _ in range(2)])

    assert got[0] is not None
    assert [each.token_id for each in got[0]] == [2, 7]
    assert got[1] is None


@pytest.mark.parametrize("temperature", [1e-40, 1e-20, 1e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3)) * 10
    tokens = sample(logits, [row(temperature=temperature, logprobs=1), row(seed=1)])

    assert tokens[0] == logits[0].argmax().item()
    assert len(tokens) == 2


def test_uniform_numbers_are_in_range_and_spread() -> None:
    numbers = uniform(np.full(10_000, 42, dtype=np.uint64), np.arange(10_000, dtype=np.uint64))

    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert np.allclose(np.histogram(numbers, bins=10, range=(0, 1))[0] / 1000, 1.0, atol=0.15)


def test_the_first_choice_keeps_the_seed_and_others_get_their_own() -> None:
    assert derive_seed(5, 0) == 5
    assert len({derive_seed(5, index) for index in range(100)}) == 100
    assert derive_seed(-1, 0) == 2**64 - 1
