"""The model of step times: what it learns, what it refuses, and what always holds for it."""

import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tandem_engine.scheduler.latency.regression import FadingSamples, clip_outliers, least_squares
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import (
    FIRST_MARGIN,
    REFIT_EVERY,
    START,
    Coefficients,
    StepTimeModel,
)

TRUE_COSTS = Coefficients(base=5e-3, token=2e-4, chunk_context=3e-8, decode_context=4e-7, row=5e-5)
FEATURES = ("num_tokens", "num_rows", "chunk_context", "decode_context")


def load(
    num_tokens: int = 0, num_rows: int = 0, chunk_context: float = 0.0, decode_context: int = 0
) -> StepLoad:
    return StepLoad(
        num_tokens=num_tokens,
        num_rows=num_rows,
        chunk_context=chunk_context,
        decode_context=decode_context,
    )


def seconds_of(load: StepLoad, prices: Coefficients = TRUE_COSTS) -> float:
    return (
        prices.base
        + prices.token * load.num_tokens
        + prices.chunk_context * load.chunk_context
        + prices.decode_context * load.decode_context
        + prices.row * load.num_rows
    )


def any_load(chance: random.Random, *, chunks: float = 0.3) -> StepLoad:
    """Up to 64 decode rows; in a share of the steps a prompt chunk, up to 3,500 tokens deep."""
    rows = chance.randint(1, 64)
    context = sum(chance.randint(50, 2000) for _ in range(rows))
    if chance.random() >= chunks:
        return load(rows, rows, 0.0, context)
    chunk, start = chance.choice([16, 64, 128, 256, 512]), chance.randint(0, 3000)
    return load(rows + chunk, rows + 1, chunk * (start + chunk / 2), context)


def teach(
    model: StepTimeModel,
    chance: random.Random,
    count: int,
    *,
    prices: Coefficients = TRUE_COSTS,
    noise: float = 0.1,
    outliers: float = 0.0,
    chunks: float = 0.3,
) -> None:
    for _ in range(count):
        seen = any_load(chance, chunks=chunks)
        seconds = seconds_of(seen, prices) * max(chance.gauss(1.0, noise), 0.1)
        if chance.random() < outliers:
            seconds *= chance.uniform(5.0, 50.0)
        model.observe(seen, seconds)


def errors(
    model: StepTimeModel,
    chance: random.Random,
    prices: Coefficients = TRUE_COSTS,
    chunks: float = 0.3,
) -> list[float]:
    """Relative errors against the noiseless truth, smallest first."""
    loads = [any_load(chance, chunks=chunks) for _ in range(200)]
    return sorted(abs(model.predict(each) / seconds_of(each, prices) - 1.0) for each in loads)


def scaled(prices: Coefficients, factor: float) -> Coefficients:
    return Coefficients(*(factor * price for price in prices))


# ── what it learns ───────────────────────────────────────────────────────────────────────────


def test_a_prediction_is_the_sum_of_five_parts() -> None:
    model = StepTimeModel(Coefficients(1.0, 10.0, 100.0, 1000.0, 10000.0))

    assert model.predict(load(2, 3, 4.0, 5)) == 1.0 + 20.0 + 400.0 + 5000.0 + 30000.0
    assert model.predict(load()) == 1.0


def test_before_the_first_step_the_start_values_hold() -> None:
    model = StepTimeModel()

    assert model.coefficients == START
    assert model.margin(has_chunks=True) == model.margin(has_chunks=False) == FIRST_MARGIN


def test_a_start_without_a_price_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^start .*row=0.* has a price that is not above 0"):
        StepTimeModel(START._replace(row=0))


def test_the_prices_are_found_without_noise() -> None:
    model, chance = StepTimeModel(), random.Random(1)
    teach(model, chance, 1000, noise=0.0)

    assert errors(model, chance)[180] < 0.02
    # A row costs at most a twentieth of a step, so its price may be off; the pull costs the rest.
    for found, true in zip(model.coefficients[:4], TRUE_COSTS[:4], strict=True):
        assert found == pytest.approx(true, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_the_prices_are_found_under_noise_and_outliers(seed: int) -> None:
    model, chance = StepTimeModel(), random.Random(seed)
    teach(model, chance, 1000, noise=0.1, outliers=0.02)

    assert errors(model, chance)[180] < 0.08
    found = model.coefficients
    assert found.token == pytest.approx(TRUE_COSTS.token, rel=0.2)
    assert found.decode_context == pytest.approx(TRUE_COSTS.decode_context, rel=0.25)
    assert found.base == pytest.approx(TRUE_COSTS.base, rel=0.25)
    assert found.chunk_context == pytest.approx(TRUE_COSTS.chunk_context, rel=0.6)


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_sixty_steps_are_enough_for_a_machine_of_any_speed(factor: float) -> None:
    model, chance = StepTimeModel(), random.Random(2)
    prices = scaled(TRUE_COSTS, factor)
    teach(model, chance, 60, prices=prices)

    assert errors(model, chance, prices)[180] < 0.2


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_speed_is_followed(factor: float) -> None:
    model, chance = StepTimeModel(), random.Random(3)
    teach(model, chance, 1000, outliers=0.02)
    prices = scaled(TRUE_COSTS, factor)
    teach(model, chance, 448, prices=prices, outliers=0.02)

    assert errors(model, chance, prices)[100] < 0.15
    teach(model, chance, 448, prices=prices, outliers=0.02)
    assert errors(model, chance, prices)[100] < 0.07


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_margin_follows_a_change_of_speed_at_once(factor: float) -> None:
    model, chance = StepTimeModel(), random.Random(4)
    teach(model, chance, 1024, chunks=0.5)
    prices = scaled(TRUE_COSTS, factor)
    teach(model, chance, 96, prices=prices, chunks=0.5)

    for has_chunks in (False, True):
        loads = [any_load(chance, chunks=float(has_chunks)) for _ in range(200)]
        margin = model.margin(has_chunks=has_chunks)
        off = [margin * model.predict(each) / seconds_of(each, prices) for each in loads]
        # Nine in ten of the noisy steps are covered, so the noiseless ones lie a little below.
        assert 1.0 < sorted(off)[100] < 1.45


@pytest.mark.parametrize("has_chunks", [False, True])
@pytest.mark.parametrize(
    ("factor", "least", "most"),
    [
        pytest.param(StepTimeModel.margin, 0.82, 0.97, id="the margin: nine in ten"),
        pytest.param(StepTimeModel.drift, 0.4, 0.6, id="the drift: half of them"),
    ],
)
def test_so_many_steps_take_no_longer_than_predicted(
    factor: Callable[..., float], least: float, most: float, has_chunks: bool
) -> None:
    model, chance = StepTimeModel(), random.Random(5)
    covered: list[bool] = []
    for _ in range(60):
        teach(model, chance, REFIT_EVERY)
        for _ in range(20):
            seen = any_load(chance, chunks=float(has_chunks))
            seconds = seconds_of(seen) * chance.gauss(1.0, 0.1)
            covered.append(seconds <= model.predict(seen) * factor(model, has_chunks=has_chunks))

    assert least < sum(covered) / len(covered) < most


def test_before_there_are_enough_steps_the_drift_is_the_first_margin() -> None:
    model = StepTimeModel()

    assert model.drift(has_chunks=True) == model.drift(has_chunks=False) == FIRST_MARGIN


def test_a_part_that_was_never_seen_is_as_slow_as_the_rest() -> None:
    model, chance = StepTimeModel(), random.Random(6)
    teach(model, chance, 500, prices=scaled(START, 50.0), chunks=0.0)

    assert model.coefficients.chunk_context == pytest.approx(50.0 * START.chunk_context, rel=0.2)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_says_nothing_is_not_learnt(seconds: float) -> None:
    model = StepTimeModel()
    for _ in range(100):
        model.observe(load(1, 1), seconds)

    assert model.coefficients == START
    assert model.num_fits == model.num_refused == 0


# ── what does not ruin it ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pause_s", [1.0, 30.0])
@pytest.mark.parametrize("chunks", [0.0, 1.0])
def test_one_pause_of_the_machine_moves_no_prediction(pause_s: float, chunks: float) -> None:
    model, chance = StepTimeModel(), random.Random(7)
    teach(model, chance, 28 + 10 * REFIT_EVERY, noise=0.02)
    before = errors(model, chance)[180]
    seen = any_load(chance, chunks=chunks)
    model.observe(seen, seconds_of(seen) + pause_s)
    teach(model, chance, 2 * REFIT_EVERY, noise=0.02)

    assert before < 0.03
    assert errors(model, chance)[180] < 0.04


def test_a_slow_first_step_is_forgotten() -> None:
    model, chance = StepTimeModel(), random.Random(8)
    model.observe(any_load(chance), 20.0)
    teach(model, chance, 100)

    assert errors(model, chance)[180] < 0.25


def test_tamed_brings_a_lone_ratio_back_to_the_edge() -> None:
    # The median is 1.0, the median distance 0.1, so the edges are 0.4 and 1.6.
    assert clip_outliers([0.9, 1.0, 1.1, 0.8, 40.0], anchor=1.0) == pytest.approx(
        [0.9, 1.0, 1.1, 0.8, 1.6]
    )


def test_tamed_leaves_steps_that_are_all_slower() -> None:
    assert clip_outliers([40.0, 41.0, 42.0], anchor=1.0) == [40.0, 41.0, 42.0]


def test_tamed_holds_too_few_ratios_by_the_anchor() -> None:
    assert clip_outliers([0.1, 50.0], anchor=2.0) == pytest.approx([2.0 / 3.0, 6.0])
    assert clip_outliers([], anchor=1.0) == []


def mean_error(model: StepTimeModel, seen: Sequence[tuple[StepLoad, float]]) -> float:
    pairs = [(model.predict(load), seconds) for load, seconds in seen]
    return sum(abs(a - b) / max(a, b) for a, b in pairs) / len(pairs)


def heavy_tail(chance: random.Random) -> float:
    return 1.0 + chance.paretovariate(1.2)


def two_speeds(chance: random.Random) -> float:
    return chance.choice([1.0, 1.0, 4.0])


@pytest.mark.parametrize("factor", [heavy_tail, two_speeds])
def test_no_fit_is_worse_on_the_last_steps_than_what_it_replaced(
    factor: Callable[[random.Random], float],
) -> None:
    model, chance = StepTimeModel(), random.Random(9)
    seen: list[tuple[StepLoad, float]] = []
    for _ in range(100 * REFIT_EVERY):
        each = any_load(chance, chunks=0.0)
        seen.append((each, seconds_of(each) * factor(chance)))
        before, fits, refused = model.coefficients, model.num_fits, model.num_refused
        frozen = StepTimeModel(before) if min(before) > 0.0 else None
        if frozen is not None:
            frozen.knee = model.knee
        model.observe(*seen[-1])
        if model.num_refused > refused:
            assert model.coefficients == before
        elif model.num_fits > fits and frozen is not None:
            recent = seen[-32:]
            assert mean_error(model, recent) <= mean_error(frozen, recent) + 1e-9

    assert model.num_fits > 0
    assert model.num_refused > 0


def test_a_burst_of_a_few_slow_steps_is_refused() -> None:
    model, chance = StepTimeModel(), random.Random(10)
    teach(model, chance, 28 + 20 * REFIT_EVERY, noise=0.0, chunks=0.0)
    before, refused = model.coefficients, model.num_refused
    # A third of the steps between two fits takes 1.2 times as long: too near to look like a pause.
    for number in range(REFIT_EVERY):
        seen = any_load(chance, chunks=0.0)
        model.observe(seen, seconds_of(seen) * (1.2 if number % 3 == 0 else 1.0))

    assert model.num_refused == refused + 1
    assert model.coefficients == before


# ── the knee ─────────────────────────────────────────────────────────────────────────────────


def roofline(load: StepLoad, knee: float) -> float:
    """A machine that needs as long for a few tokens as for `knee`: 0.1 ms each."""
    return 3e-3 + 1e-4 * max(load.num_tokens, knee) + 3e-5 * load.num_rows


def of_tokens(chance: random.Random) -> StepLoad:
    """Up to 40 decode rows, and in two of three steps a chunk beside them."""
    rows = chance.randint(1, 40)
    chunk = chance.choice([0, 16 * chance.randint(2, 8), 16 * chance.randint(2, 60)])
    return load(rows + chunk, rows + bool(chunk), chunk * chunk / 2, 1000 * rows)


@pytest.mark.parametrize(
    ("knee", "found"), [(0, {0}), (120, {128}), (190, {192}), (300, {256, 384})]
)
def test_the_knee_of_a_machine_is_found(knee: float, found: set[int]) -> None:
    model, chance = StepTimeModel(), random.Random(11)
    for _ in range(600):
        each = of_tokens(chance)
        model.observe(each, roofline(each, knee) * chance.gauss(1.0, 0.05))

    assert model.knee in found
    off = [
        model.predict(each) / roofline(each, knee) - 1 for each in map(of_tokens, [chance] * 200)
    ]
    assert sorted(map(abs, off))[180] < 0.12


def test_a_chunk_below_the_knee_costs_nothing_but_attention() -> None:
    model = StepTimeModel(Coefficients(1.0, 0.1, 0.02, 1.0, 1.0))
    model.knee = 100

    assert model.predict(load(num_tokens=1)) == model.predict(load(num_tokens=100)) == 11.0
    assert model.predict(load(num_tokens=101)) == pytest.approx(11.1)
    # Of 90 free tokens, those whose attention takes 1 s: 0.02 · 10² / 2.
    assert model.largest_chunk(1.0, 0.0, free=90) == pytest.approx(10.0)
    # 5 are free: 0.1 · (x - 5) + 0.02 · x² / 2 = 1, so x² + 10·x = 150.
    assert model.largest_chunk(1.0, 0.0, free=5) == pytest.approx(-5 + 175**0.5)


# ── what always holds ────────────────────────────────────────────────────────────────────────

loads = st.builds(
    load,
    st.integers(0, 10_000),
    st.integers(0, 1000),
    st.floats(0.0, 1e9),
    st.integers(0, 10_000_000),
)
samples = st.lists(st.tuples(loads, st.floats(1e-6, 1e4)), min_size=4, max_size=3 * REFIT_EVERY)


@given(samples, loads, st.sampled_from(FEATURES), st.integers(1, 10_000))
def test_more_of_anything_never_takes_less_time(
    seen: list[tuple[StepLoad, float]], one: StepLoad, feature: str, more: int
) -> None:
    model = StepTimeModel()
    for each, seconds in seen:
        model.observe(each, seconds)
    values = {name: getattr(one, name) for name in FEATURES}
    larger = load(**values | {feature: values[feature] + more})

    assert model.num_fits + model.num_refused > 0
    assert min(model.coefficients) >= 0.0
    assert 0.0 <= model.predict(one) <= model.predict(larger)


@given(samples, st.floats(1e-6, 10.0), st.floats(0.0, 1e5))
def test_the_largest_chunk_takes_all_of_its_time(
    seen: list[tuple[StepLoad, float]], seconds: float, start: float
) -> None:
    model = StepTimeModel()
    for each, taken in seen:
        model.observe(each, taken)
    chunk = model.largest_chunk(seconds, start)
    prices = model.coefficients
    assume(chunk < 1e9)  # beyond, tokens cost nothing

    cost = prices.token * chunk + prices.chunk_context * chunk * (start + chunk / 2)
    assert cost == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("prices", "seconds", "start", "chunk"),
    [
        pytest.param((0.01, 0.0), 1.0, 500.0, 100.0, id="tokens alone: 1 s at 10 ms"),
        pytest.param((0.0, 0.02), 1.0, 0.0, 10.0, id="attention alone: 0.02 · 10² / 2"),
        pytest.param((0.1, 0.02), 2.0, 0.0, 10.0, id="both: 1 s and 1 s"),
        pytest.param((0.1, 0.02), 4.0, 10.0, 10.0, id="10 tokens deep: 0.02 · 10 · (10 + 5)"),
        pytest.param((0.1, 0.02), 0.0, 0.0, 0.0, id="no time"),
        pytest.param((0.1, 0.02), -1.0, 0.0, 0.0, id="less than none"),
        pytest.param((0.1, 0.02), float("inf"), 0.0, float("inf"), id="all the time"),
        pytest.param((0.0, 0.0), 1.0, 0.0, float("inf"), id="tokens that cost nothing"),
    ],
)
def test_the_largest_chunk_by_hand(
    prices: tuple[float, float], seconds: float, start: float, chunk: float
) -> None:
    model = StepTimeModel()
    model._coefficients = Coefficients(1.0, prices[0], prices[1], 1.0, 1.0)

    assert model.largest_chunk(seconds, start) == pytest.approx(chunk)


# ── least squares ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("gram", "moment", "solution"),
    [
        pytest.param([[2.0]], [4.0], [2.0], id="one coefficient"),
        pytest.param([[2.0]], [-4.0], [0.0], id="one that would be negative"),
        pytest.param([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0], [1.0, 0.5], id="two apart"),
        pytest.param([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0], [1.0, 1.0], id="two together"),
        # Free, it is (5/3, −1/3); with the second held, 3 / 2.
        pytest.param([[2.0, 1.0], [1.0, 2.0]], [3.0, 1.0], [1.5, 0.0], id="the second is held"),
        pytest.param([[2.0, 1.0], [1.0, 2.0]], [-1.0, -1.0], [0.0, 0.0], id="both are held"),
    ],
)
def test_least_squares_by_hand(
    gram: list[list[float]], moment: list[float], solution: list[float]
) -> None:
    assert least_squares(gram, moment) == pytest.approx(solution)


vectors = st.lists(st.integers(-5, 5).map(float), min_size=4, max_size=4)


@given(st.lists(vectors, min_size=1, max_size=8), vectors)
def test_no_other_point_has_less_error(rows: list[list[float]], moment: list[float]) -> None:
    """The conditions of Karush, Kuhn and Tucker, which name the one minimum."""
    gram = [
        [sum(row[i] * row[j] for row in rows) + (0.1 if i == j else 0.0) for j in range(4)]
        for i in range(4)
    ]
    solution = least_squares(gram, moment)

    for i in range(4):
        slope = moment[i] - sum(gram[i][j] * solution[j] for j in range(4))
        assert solution[i] >= 0.0
        assert slope <= 1e-6
        assert solution[i] < 1e-9 or abs(slope) < 1e-6


def test_samples_that_fade_weigh_less() -> None:
    memory = FadingSamples(1, pull=0.0)
    memory.add([[1.0, 1.0]], [3.0, 3.0])
    memory.fade(0.5)
    memory.add([[1.0]], [1.0])

    # Two samples of 3 with weight ½ each, one of 1 with weight 1.
    assert memory.fit(0.0) == pytest.approx([2.0])
    assert memory.mean_target == pytest.approx(2.0)


def test_the_pull_decides_where_samples_say_nothing() -> None:
    memory = FadingSamples(2, pull=0.01)
    assert memory.mean_target == 1.0
    memory.add([[1.0] * 100, [0.0] * 100], [7.0] * 100)

    first, second = memory.fit(5.0)
    assert first == pytest.approx(7.0, rel=1e-3)
    assert second == pytest.approx(5.0)


def test_features_that_always_come_together_share_the_cost() -> None:
    memory = FadingSamples(2, pull=0.01)
    memory.add([[0.5] * 100, [0.5] * 100], [6.0] * 100)

    assert memory.fit(6.0) == pytest.approx([6.0, 6.0])


@given(
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    st.lists(st.floats(0.0, 50.0), min_size=2, max_size=2),
)
def test_a_fit_finds_what_made_the_samples(share: list[float], expected: list[float]) -> None:
    memory = FadingSamples(2, pull=1e-9)
    columns = [list(column) for column in zip(*product((0.0, 1.0, *share), repeat=2), strict=True)]
    targets = [expected[0] * a + expected[1] * b for a, b in zip(*columns, strict=True)]
    memory.add(columns, targets)

    assert memory.fit(1.0) == pytest.approx(expected, abs=1e-5)
