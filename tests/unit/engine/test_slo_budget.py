"""Budgets of steps: the largest that the decode rows can wait for."""

import random
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import KNEES, Coefficients, StepTimeModel
from tandem_engine.scheduler.policies.budget import Budget, BudgetView, budget_for
from tandem_engine.scheduler.policies.budget.budget import FixedBudget
from tandem_engine.scheduler.policies.budget.slo_budget import SAFETY, SloBudget

# A step costs 8 ms, a token 0.1 ms, a cached token of a decode row 1 µs, a row 0.2 ms; attention
# of chunks next to nothing. Before anything was measured the margin is 1.2.
FLAT = Coefficients(base=8e-3, token=1e-4, chunk_context=1e-15, decode_context=1e-6, row=2e-4)

SLO = Slo(ttft=LatencyTarget(target="2s"), tpot=LatencyTarget(target="50ms"))


def view(**given: Any) -> BudgetView:
    """Ten decode rows with 1,000 tokens each; a long prompt that has just begun."""
    usual: dict[str, Any] = {
        "max_token_budget": 512,
        "num_decodes": 10,
        "decode_tokens": 10,
        "decode_context": 10_000,
        "slack_s": 0.05,
        "prompt_tokens": 5000,
        "prompt_context": 0,
        "prompt_wait_s": 0.0,
    }
    return BudgetView(**usual | given)


def budget(prices: Coefficients = FLAT, slo: Slo = SLO, knee: int = 0) -> SloBudget:
    model = StepTimeModel(prices)
    model.knee = knee
    return SloBudget(slo, model)


def test_a_fixed_budget_is_the_maximum() -> None:
    fixed = FixedBudget()

    assert fixed.choose(view(slack_s=-1.0)) == fixed.choose(view(num_decodes=0)) == 512


def test_with_a_tpot_target_the_budget_follows_it() -> None:
    model = StepTimeModel()
    ttft_only = Slo(ttft=LatencyTarget(target="1s"))

    assert isinstance(budget_for(SLO, model), SloBudget)
    assert isinstance(budget_for(ttft_only, model), FixedBudget)
    assert isinstance(budget_for(Slo(), model), FixedBudget)


# Ten decode rows and the row of the chunk: 8 + 1 + 10 + 2.2 = 21.2 ms before any prompt token.
# 0.98 · 50 ms / 1.2 − 21.2 ms = 19.63 ms are 196 tokens, of which 192 are whole tiles.
@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        pytest.param({}, 10 + 192, id="196 tokens fit, cut to 12 tiles"),
        pytest.param({"slack_s": 0.0494}, 10 + 176, id="191 tokens fit, cut to 11 tiles"),
        pytest.param({"prompt_tokens": 195}, 10 + 195, id="the whole rest of a prompt is not cut"),
        pytest.param({"prompt_tokens": 210}, 10 + 192, id="a rest that does not fit is"),
        pytest.param({"prompt_tokens": 5}, 10 + 5, id="a small rest is taken whole"),
        pytest.param({"prompt_tokens": 0}, 10, id="no prompt: the decode rows alone"),
        pytest.param({"slack_s": 0.2}, 512, id="enough time: the maximum, filled to the token"),
        pytest.param({"slack_s": inf}, 512, id="no target: the maximum"),
        pytest.param({"max_token_budget": 112}, 112, id="a low maximum"),
        pytest.param({"max_token_budget": 10}, 10, id="no tokens left under the maximum"),
        pytest.param({"max_token_budget": 4}, 4, id="decode rows above the maximum"),
        pytest.param({"slack_s": 0.0299}, 10 + 32, id="32 tokens are worth a row"),
        pytest.param({"slack_s": 0.0298}, 10, id="31 tokens are too few"),
        pytest.param({"slack_s": 0.01}, 10, id="the decode rows alone are late already"),
        pytest.param({"slack_s": -1.0}, 10, id="and even overdue"),
        pytest.param({"slack_s": -1.0, "prompt_tokens": 5}, 10, id="a small rest would be late"),
        pytest.param({"decode_tokens": 50}, 50 + 144, id="drafts take time: 4 ms are 40 tokens"),
        pytest.param({"decode_context": 20_000}, 10 + 96, id="context too: 10 ms are 100 tokens"),
        pytest.param(
            {"num_decodes": 0, "decode_tokens": 0, "decode_context": 0, "slack_s": inf}
            | {"prompt_tokens": 70},
            70,
            id="prompts alone",
        ),
    ],
)
def test_the_budget_by_hand(given: dict[str, Any], tokens: int) -> None:
    assert budget().choose(view(**given)) == tokens


# 0.98 · 50 ms / 1.2 − 21.2 ms = 19.633 ms again; with 1 µs a pair of tokens a chunk of x that
# starts at c costs (1e-4 + 1e-6 · c) · x + 1e-6 · x² / 2.
@pytest.mark.parametrize(
    ("context", "chunk"),
    [
        pytest.param(0, 112, id="x² + 200·x = 39267 at 121.9"),
        pytest.param(100, 80, id="100 deep: x² + 400·x = 39267 at 81.8"),
        pytest.param(500, 0, id="500 deep: x² + 1200·x = 39267 at 31.9, too few"),
        pytest.param(1000, 0, id="1000 deep: x² + 2200·x = 39267 at 17.7, too few"),
    ],
)
def test_attention_makes_a_deeper_chunk_smaller(context: int, chunk: int) -> None:
    prices = FLAT._replace(chunk_context=1e-6)

    assert budget(prices).choose(view(prompt_context=context)) == 10 + chunk


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        pytest.param({"prompt_wait_s": 0.99, "slack_s": 0.0}, 10, id="20 TPOT are 1 s"),
        # 50 ms late: as with a slack of 50 ms.
        pytest.param({"prompt_wait_s": 1.0, "slack_s": 0.0}, 10 + 192, id="then one TPOT late"),
        pytest.param({"prompt_wait_s": 1.0, "slack_s": -9.0}, 10 + 192, id="however late it is"),
        pytest.param(
            {"prompt_wait_s": 1.0, "slack_s": -9.0, "prompt_tokens": 7}, 10 + 7, id="a small rest"
        ),
        pytest.param(
            {"prompt_wait_s": 1.0, "slack_s": 0.0, "decode_context": 90_000},
            10 + 32,
            id="where decoding alone misses the target: the floor",
        ),
        pytest.param({"prompt_wait_s": 9.0, "slack_s": 0.2}, 512, id="the maximum stands"),
    ],
)
def test_a_prompt_is_kept_back_for_so_long_and_no_longer(
    given: dict[str, Any], tokens: int
) -> None:
    assert budget().choose(view(**given)) == tokens


def test_without_a_ttft_target_a_prompt_is_kept_back_for_a_second() -> None:
    slo = Slo(tpot=SLO.tpot)

    assert budget(slo=slo).choose(view(slack_s=0.0, prompt_wait_s=0.99)) == 10
    assert budget(slo=slo).choose(view(slack_s=0.0, prompt_wait_s=1.0)) == 10 + 192


def test_a_short_ttft_keeps_prompts_back_for_twenty_tpot_no_less() -> None:
    loose, short = (Slo(ttft=LatencyTarget(target=ttft), tpot=SLO.tpot) for ttft in ("8s", "1s"))

    assert budget(slo=short).choose(view(slack_s=0.0, prompt_wait_s=0.99)) == 10
    assert budget(slo=short).choose(view(slack_s=0.0, prompt_wait_s=1.0)) == 10 + 192
    assert budget(slo=loose).choose(view(slack_s=0.0, prompt_wait_s=1.99)) == 10
    assert budget(slo=loose).choose(view(slack_s=0.0, prompt_wait_s=2.0)) == 10 + 192


# Up to the knee a step costs 8 + 12.8 + 10 + 2.2 = 33 ms whatever its tokens, then 0.1 ms each.
@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        # 0.98 · 50 ms / 1.2 − 33 ms = 7.83 ms are 78 tokens above the knee: 118 + 78.
        pytest.param({}, 10 + 192, id="what is free, and what fits: 196"),
        pytest.param({"slack_s": 0.0405}, 10 + 112, id="no time to spare: 118 that are free"),
        pytest.param({"slack_s": -1.0}, 10 + 112, id="rows that are late: free all the same"),
        pytest.param({"slack_s": -1.0, "decode_tokens": 90}, 90 + 32, id="38 are free"),
        pytest.param({"slack_s": -1.0, "decode_tokens": 100}, 100, id="28 are too few"),
        pytest.param({"slack_s": -1.0, "decode_tokens": 200}, 200, id="above the knee none is"),
    ],
)
def test_tokens_below_the_knee_are_free(given: dict[str, Any], tokens: int) -> None:
    assert budget(knee=128).choose(view(**given)) == tokens


def test_tokens_whose_attention_is_dear_are_not_free() -> None:
    # Late rows give a chunk 5 % of 33 ms, 1.65 ms. With 1e-9 s a pair x · (5000 + x / 2) = 1.65e6
    # at 320 tokens: more than the 118 that are free.
    cheap, dear = (budget(FLAT._replace(chunk_context=each), knee=128) for each in (1e-9, 1e-6))

    # With 1e-6 s a pair it is 0.33 tokens: too few.
    late = {"slack_s": -1.0, "prompt_context": 5000}
    assert cheap.choose(view(**late)) == 10 + 112
    assert dear.choose(view(**late)) == 10


def test_the_floor_is_a_setting() -> None:
    low = SloBudget(SLO, StepTimeModel(FLAT), floor=16)

    assert low.choose(view(slack_s=0.0298)) == 10 + 16


def test_the_budget_learns_from_the_steps_it_observes() -> None:
    slow = budget()
    before = slow.choose(view())
    chance = random.Random(1)
    # Four times as slow as expected, and no noise: the margin goes to 1.
    for number in range(200):
        chunk = 16 * chance.randint(0, 20) if number % 2 else 0
        load = StepLoad(
            num_tokens=10 + chunk,
            num_rows=10 + bool(chunk),
            chunk_context=chunk * chunk / 2,
            decode_context=chance.randint(5_000, 20_000),
        )
        slow.model.observe(load, 4.0 * slow_time(load))
    after = slow.choose(view(slack_s=0.2))

    # 0.98 · 200 ms − 4 · 21.2 ms = 111.2 ms at 0.4 ms a token are 278 tokens.
    assert before == 10 + 192
    assert after == 10 + 272


def slow_time(load: StepLoad) -> float:
    return (
        FLAT.base
        + FLAT.token * load.num_tokens
        + FLAT.decode_context * load.decode_context
        + FLAT.row * load.num_rows
    )


# ── what always holds ────────────────────────────────────────────────────────────────────────

prices = st.builds(
    Coefficients,
    st.floats(1e-5, 1e-1),
    st.floats(1e-7, 1e-2),
    st.floats(1e-12, 1e-5),
    st.floats(1e-12, 1e-4),
    st.floats(1e-7, 1e-2),
)
knees = st.sampled_from(KNEES)
views = st.fixed_dictionaries(
    {
        "max_token_budget": st.integers(1, 512).map(lambda tiles: 16 * tiles),
        "num_decodes": st.integers(0, 300),
        "decode_tokens": st.integers(0, 600),
        "decode_context": st.integers(0, 100_000),
        "slack_s": st.floats(-1.0, 5.0),
        "prompt_tokens": st.integers(0, 10_000),
        "prompt_context": st.integers(0, 10_000),
        "prompt_wait_s": st.floats(0.0, 1.0),
    }
)


@given(prices, knees, views, st.one_of(st.floats(0.0, 5.0), st.just(inf)))
def test_more_slack_never_gives_fewer_tokens(
    given_prices: Coefficients, knee: int, given_view: dict[str, Any], more_s: float
) -> None:
    chosen = budget(given_prices, knee=knee)
    longer = given_view | {"slack_s": given_view["slack_s"] + more_s}

    assert chosen.choose(view(**given_view)) <= chosen.choose(view(**longer))


@given(prices, knees, views)
def test_a_budget_is_within_its_limits(
    given_prices: Coefficients, knee: int, given_view: dict[str, Any]
) -> None:
    chosen = budget(given_prices, knee=knee)
    seen = view(**given_view)
    tokens = chosen.choose(seen)
    chunk = tokens - seen.decode_tokens

    assert min(seen.decode_tokens, seen.max_token_budget) <= tokens <= seen.max_token_budget
    assert chunk <= seen.prompt_tokens
    most = min(seen.prompt_tokens, seen.max_token_budget - seen.decode_tokens)
    assert chunk <= 0 or chunk == most or (chunk % 16 == 0 and chunk >= 32)


@given(prices, views)
def test_a_chunk_is_predicted_to_be_in_time_and_no_larger_one_is(
    given_prices: Coefficients, given_view: dict[str, Any]
) -> None:
    chosen = budget(given_prices)
    seen = view(**given_view | {"prompt_wait_s": 0.0})
    most = min(seen.prompt_tokens, seen.max_token_budget - seen.decode_tokens)
    chunk = chosen.choose(seen) - seen.decode_tokens

    def time_with(tokens: int) -> float:
        load = StepLoad(
            num_tokens=seen.decode_tokens + tokens,
            num_rows=seen.num_decodes + 1,
            chunk_context=tokens * (seen.prompt_context + tokens / 2),
            decode_context=seen.decode_context,
        )
        return 1.2 / SAFETY * chosen.model.predict(load)

    if chunk > 0:
        assert time_with(chunk) <= seen.slack_s * (1.0 + 1e-9)
    if most > 0 and chunk < most:
        larger = min(max(chunk, 0) // 16 * 16 + 16, most) if chunk > 0 else min(32, most)
        assert time_with(larger) > seen.slack_s * (1.0 - 1e-9)


@given(prices, views)
def test_a_fixed_budget_is_never_smaller(
    given_prices: Coefficients, given_view: dict[str, Any]
) -> None:
    seen = view(**given_view)
    budgets: list[Budget] = [budget(given_prices), FixedBudget()]
    following, fixed = (each.choose(seen) for each in budgets)

    assert following <= fixed
