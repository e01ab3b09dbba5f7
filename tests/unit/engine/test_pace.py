"""When decode rows need their next tokens, and how missed targets move that."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.pace import (
    FASTEST,
    LARGEST_GAP,
    LATE_SHARE,
    SLOWEST,
    SMALLEST_GAP,
    START,
    Pace,
)
from tests.unit.engine.scheduling import Bench, mix, request

TPOT_S = 0.05
SLO = Slo(ttft=LatencyTarget(target="2s"), tpot=LatencyTarget(target="50ms"))


@dataclass
class Row:
    """A decode row with a prompt of 100 tokens."""

    first_token_at: float
    num_tokens: int
    num_prompt: int = 100


def rows(told: Iterable[tuple[float, int]]) -> list[Row]:
    """When each got its first token, and how many it has."""
    return [Row(first, 100 + count) for first, count in told]


def pace(leniency: float = 0.0, slo: Slo = SLO) -> Pace:
    made = Pace(slo)
    made.leniency = leniency
    return made


# One row that got its first token at 10 s, under a TPOT of 50 ms; at the fastest pace it is due
# another one every 45 ms, at the slowest every 49.5.
@pytest.mark.parametrize(
    ("leniency", "num_output", "now", "slack_s"),
    [
        pytest.param(0.0, 1, 10.0, 0.045, id="the second token: one paced TPOT after the first"),
        pytest.param(1.0, 1, 10.0, 0.0495, id="the same at the slowest pace"),
        pytest.param(0.5, 1, 10.0, 0.04725, id="and half-way"),
        pytest.param(0.0, 21, 10.9, 0.045, id="on time: 21 paced TPOT after the first"),
        pytest.param(0.0, 21, 10.85, 0.095, id="one TPOT ahead: it may take longer"),
        pytest.param(0.0, 21, 10.5, 0.15, id="nine ahead: three, not ten"),
        pytest.param(0.0, 21, 10.91, 0.035, id="10 ms late: it has to catch up"),
        pytest.param(0.0, 21, 11.5, 0.025, id="far behind: half a TPOT, no less"),
    ],
)
def test_the_slack_of_one_row(leniency: float, num_output: int, now: float, slack_s: float) -> None:
    assert pace(leniency).slack(rows([(10.0, num_output)]), now) == pytest.approx(slack_s)


@pytest.mark.parametrize(
    ("leniency", "late", "slack_s"),
    [
        pytest.param(1.0, 3, 0.0495, id="three of ten may be late at the slowest pace"),
        pytest.param(1.0, 4, 0.025, id="four of ten may not"),
        pytest.param(0.0, 0, 0.045, id="none is late"),
        pytest.param(0.0, 1, 0.025, id="none may be at the fastest pace"),
    ],
)
def test_some_rows_may_be_late(leniency: float, late: int, slack_s: float) -> None:
    seen = rows([(9.0, 1)] * late + [(10.0, 1)] * (10 - late))

    assert pace(leniency).slack(seen, 10.0) == pytest.approx(slack_s)


def test_tokens_that_a_step_is_expected_to_give_beside_the_next_one_are_time_to_take() -> None:
    class Hashable(Row):
        __hash__ = object.__hash__

    one, other = Hashable(10.0, 101), Hashable(10.0, 101)

    assert pace().slack([one], 10.0, {one: 1.5}) == pytest.approx(2.5 * 0.045)
    # The row without drafts is due as before.
    assert pace().slack([one, other], 10.0, {one: 1.5}) == pytest.approx(0.045)


def test_without_rows_or_target_there_is_no_hurry() -> None:
    assert pace().slack([], 10.0) == inf
    assert pace(slo=Slo()).slack(rows([(10.0, 1)]), 10.0) == inf


def test_a_row_that_has_no_token_yet_is_in_no_hurry() -> None:
    assert pace().slack(rows([(inf, 0)]), 10.0) == LARGEST_GAP * TPOT_S
    assert pace().slack(rows([(inf, 0), (10.0, 1)]), 10.0) == pytest.approx(0.045)


def test_a_first_token_that_is_still_computed_is_there_when_the_next_step_begins() -> None:
    foreseen = pace().slack([Row(inf, 101)], 10.0)

    assert foreseen == pace().slack([Row(10.0, 101)], 10.0)
    assert foreseen < LARGEST_GAP * TPOT_S


def test_a_prompt_that_came_too_late_makes_the_pace_slower() -> None:
    seen = Pace(SLO)
    seen.note_first_token(2.0)
    assert seen.leniency == START

    seen.note_first_token(2.001)
    assert seen.leniency == pytest.approx(START + 0.05)


def test_an_answer_that_was_too_slow_makes_the_pace_faster() -> None:
    seen = Pace(SLO)
    seen.note_end(0.05)
    assert seen.leniency == START

    seen.note_end(0.0501)
    assert seen.leniency == pytest.approx(START - 0.05)


def test_the_target_that_may_be_lost_less_often_counts_more() -> None:
    strict = Slo(
        ttft=LatencyTarget(target="2s", percentile=90),
        tpot=LatencyTarget(target="50ms", percentile=99),
    )
    seen = Pace(strict)
    seen.note_end(1.0)
    # Ten in a hundred against one: 0.1 · 10/11 and 0.1 · 1/11.
    assert seen.leniency == pytest.approx(START - 0.1 * 10 / 11)

    seen.note_first_token(9.0)
    assert seen.leniency == pytest.approx(START - 0.1 * 9 / 11)


def test_targets_that_are_kept_bring_the_pace_back() -> None:
    seen = pace(0.0)
    seen.note_end(0.04)
    assert seen.leniency == pytest.approx(0.01 * START)

    for _ in range(500):
        seen.note_end(0.04)
    assert seen.leniency == pytest.approx(START, abs=0.01)


def test_without_a_ttft_target_only_slow_answers_count() -> None:
    seen = Pace(Slo(tpot=SLO.tpot))
    seen.note_first_token(1e9)
    assert seen.leniency == START

    seen.note_end(1.0)
    assert seen.leniency < START


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 10.0)), max_size=300))
def test_the_leniency_stays_between_its_ends(seen: list[tuple[bool, float]]) -> None:
    learning = Pace(SLO)
    for is_first, seconds in seen:
        if is_first:
            learning.note_first_token(seconds)
        else:
            learning.note_end(seconds)

        assert 0.0 <= learning.leniency <= 1.0


rows_of = st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(1, 1000)), min_size=1, max_size=50)


@given(rows_of, st.floats(0.0, 1.0), st.floats(0.0, 200.0))
def test_the_slack_is_within_the_gaps_and_leaves_few_behind(
    told: list[tuple[float, int]], leniency: float, now: float
) -> None:
    slack_s = pace(leniency).slack(rows(told), now)
    pace_s = (FASTEST + (SLOWEST - FASTEST) * leniency) * TPOT_S
    late = sum(first + count * pace_s < now + slack_s - 1e-9 for first, count in told)

    assert SMALLEST_GAP * TPOT_S <= slack_s <= LARGEST_GAP * TPOT_S
    if slack_s > SMALLEST_GAP * TPOT_S:
        assert late <= LATE_SHARE * leniency * len(told)


@given(rows_of, st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 200.0))
def test_a_more_lenient_pace_never_leaves_less_time(
    told: list[tuple[float, int]], one: float, other: float, now: float
) -> None:
    low, high = sorted((one, other))

    assert pace(low).slack(rows(told), now) <= pace(high).slack(rows(told), now)


def test_a_row_that_meets_every_deadline_keeps_the_target_mean() -> None:
    chance = random.Random(2)
    kept = pace(1.0)
    first = now = 5.0
    for num_output in range(1, 200):
        now += chance.uniform(0.0, kept.slack(rows([(first, num_output)]), now))

        assert now - first <= num_output * TPOT_S + 1e-9


# ── in the scheduler ─────────────────────────────────────────────────────────────────────────


def served(seconds: float, slo: Slo | None = SLO) -> Bench:
    """One request of five tokens, each step of which takes so many seconds."""
    bench = Bench(mix(), request("a", 20, 5), slo=slo)
    bench.run(5, seconds)
    assert bench.reasons == {"a": "length"}
    return bench


@pytest.mark.parametrize(
    ("seconds", "pace_share"),
    [
        pytest.param(0.04, 0.963, id="both targets are kept"),
        pytest.param(0.06, 0.9585, id="the answer is too slow"),
        pytest.param(2.5, 0.963, id="prompt and answer are: one takes back what the other did"),
    ],
)
def test_the_scheduler_tells_what_targets_came_to(seconds: float, pace_share: float) -> None:
    assert served(seconds).scheduler.stats().tpot_pace == pytest.approx(pace_share)


def test_without_targets_there_is_no_pace() -> None:
    assert served(9.0, slo=None).scheduler.stats().tpot_pace is None


def test_a_target_that_comes_later_begins_with_a_pace_of_its_own() -> None:
    bench = served(0.06)
    bench.engine.reconfigure(mix(), Slo(tpot=LatencyTarget(target="20ms")))

    assert bench.scheduler.stats().tpot_pace == pytest.approx(0.963)


# ── one target alone ─────────────────────────────────────────────────────────────────────────


def alone(percentile: int, leniency: float) -> Pace:
    found = Pace(Slo(tpot=LatencyTarget(target="50ms", percentile=percentile)))
    found.leniency = leniency
    return found


@pytest.mark.parametrize("percentile", [50, 90, 99])
@pytest.mark.parametrize(("more_lost", "goes"), [(0, 0), (1, -1), (-1, 1)])
def test_a_tpot_alone_rests_where_as_many_are_lost_as_its_percentile_allows(
    percentile: int, more_lost: int, goes: int
) -> None:
    seen = alone(percentile, 0.5)
    lost = 100 - percentile + more_lost
    # Evenly, so that the ends of the leniency are out of reach.
    for number in range(100):
        is_lost = (number + 1) * lost // 100 > number * lost // 100
        seen.note_end(1.0 if is_lost else 0.01)

    # A lost one takes 0.05, and a kept one adds 0.05 · (100 - percentile) / percentile.
    moved = 0.05 * ((100 - lost) * (100 - percentile) / percentile - lost)
    assert seen.leniency - 0.5 == pytest.approx(moved)
    assert (moved > 1e-9) - (moved < -1e-9) == goes


def test_a_stricter_tpot_is_held_to_a_faster_pace() -> None:
    paces = []
    for percentile in (50, 90, 99):
        seen = alone(percentile, START)
        for number in range(2000):
            # Rows that are paced slower are late more often.
            seen.note_end(1.0 if (number * 7919) % 1000 < 250 * seen.leniency else 0.01)
        paces.append(seen.share)

    assert paces == sorted(paces, reverse=True)
    assert paces[0] > paces[2] + 0.01
