"""The order of prompts under a TTFT target."""

from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.error_budget import ErrorBudget
from tandem_engine.scheduler.group import group_of
from tandem_engine.scheduler.orders.laxity_order import PATIENCE, LaxityOrder
from tandem_engine.scheduler.sequence import Sequence, State, first_sequence
from tandem_engine.scheduler.waiting import Waiting
from tests.unit.engine.scheduling import Bench, mix, request

TOKEN_S = 1e-4
TTFT_S = 2.0

_numbers = count()


def order() -> LaxityOrder:
    return LaxityOrder(lambda: TOKEN_S, TTFT_S)


def prompt(num_tokens: int, *, arrived: float = 10.0) -> Sequence:
    number = next(_numbers)
    request = Request(
        request_id=f"r{number}",
        prompt_token_ids=(0,) * num_tokens,
        sampling=SamplingParams(max_tokens=8),
        max_new_tokens=8,
        arrived=arrived,
    )
    return first_sequence(group_of(request, number=number), block_size=16, keeps_keys=False)


def with_first_token(sequence: Sequence) -> Sequence:
    sequence.num_tokens += 1
    return sequence


def in_order(*sequences: Sequence) -> list[Sequence]:
    return sorted(sequences, key=order().key)


def test_of_two_that_come_together_the_shorter_prompt_goes_first() -> None:
    long, short = prompt(2000), prompt(200)

    assert in_order(long, short) == [short, long]


def test_equal_prompts_go_by_arrival() -> None:
    later, earlier = prompt(500, arrived=11.0), prompt(500, arrived=10.0)

    assert in_order(later, earlier) == [earlier, later]


def test_a_long_prompt_is_passed_for_fifty_times_as_long_as_it_takes_and_no_longer() -> None:
    # 1,000 tokens take 0.1 s: with a patience of 50, prompts of one token (50 · 0.1 ms = 5 ms) that
    # come up to 4.995 s later pass.
    assert PATIENCE == 50.0
    long = prompt(1000, arrived=10.0)

    assert in_order(long, passes := prompt(1, arrived=14.99)) == [passes, long]
    assert in_order(long, waits := prompt(1, arrived=15.0)) == [long, waits]


def test_a_sequence_that_has_had_its_first_token_goes_before_all() -> None:
    short, preempted = prompt(1, arrived=0.0), with_first_token(prompt(3000, arrived=20.0))

    assert in_order(short, preempted) == [preempted, short]


def test_a_target_is_lost_when_the_prompt_no_longer_fits_before_the_deadline() -> None:
    # 10 s + 2 s − 2,000 · 0.1 ms.
    assert order().latest_start(prompt(2000, arrived=10.0)) == 11.8


def test_without_a_target_none_is_lost() -> None:
    assert LaxityOrder(lambda: TOKEN_S).latest_start(prompt(2000)) == inf


def test_a_first_token_that_was_given_can_not_be_lost() -> None:
    assert order().latest_start(with_first_token(prompt(2000))) == inf


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 100)), min_size=2, max_size=8))
def test_none_is_passed_by_one_that_comes_later_than_its_patience(
    given_prompts: list[tuple[int, float]],
) -> None:
    ranked = in_order(*(prompt(tokens, arrived=at) for tokens, at in given_prompts))

    for rank, behind in enumerate(ranked):
        for before in ranked[:rank]:
            assert before.arrived <= behind.arrived + PATIENCE * TOKEN_S * behind.num_prompt


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_key_never_falls_when_a_sequence_is_served(tokens: int, computed: int) -> None:
    served = prompt(tokens)
    before = order().key(served)
    served.num_computed = min(tokens, computed)
    served.num_attained += computed

    assert order().key(served) >= before


# ── in the queue, and in overload ────────────────────────────────────────────────────────────


def asked(waiting: Waiting, now: float) -> list[Sequence]:
    """Return the sequences in the order of the offers, when none starts."""
    seen: list[Sequence] = []

    def note(one: Sequence) -> bool:
        seen.append(one)
        return True

    waiting.offer(note, now=now, most=100)
    return seen


def test_a_prompt_that_has_missed_its_target_goes_behind_all_that_can_keep_theirs() -> None:
    waiting = Waiting(order())
    lost, late, young = prompt(1, arrived=0.0), prompt(9000, arrived=8.0), prompt(4000, arrived=9.5)
    for one in (lost, late, young):
        waiting.push(one)

    # Until 2 s − 0.1 ms, 9.1 s and 11.1 s the three can keep theirs.
    assert asked(waiting, now=1.0) == [lost, young, late]
    assert asked(waiting, now=9.0) == [young, late, lost]
    assert asked(waiting, now=9.2) == [young, lost, late]


def test_once_it_is_overdue_the_oldest_is_one_in_seven_that_start() -> None:
    waiting = Waiting(order())
    waiting.age_bound_s = 8.0
    lost = [prompt(1, arrived=0.0), prompt(1, arrived=0.5)]
    young = [prompt(1, arrived=9.0) for _ in range(20)]
    for one in (*lost, *young):
        waiting.push(one)
    started: list[Sequence] = []

    def start_one(one: Sequence) -> bool:
        one.state = State.RUNNING
        waiting.left()
        started.append(one)
        return False

    for _ in range(14):
        waiting.offer(lambda _: False, now=9.0, most=100)  # none is taken
        waiting.offer(start_one, now=9.0, most=100)

    assert started == [*young[:6], lost[0], *young[6:12], lost[1]]


def test_in_overload_none_waits_for_ever() -> None:
    slo = Slo(ttft=LatencyTarget(target="100ms"), tpot=LatencyTarget(target="50ms"))
    bench = Bench(mix(32), num_blocks=512, slo=slo)
    # Its 3,000 tokens alone take longer than the target: it is late from the start.
    bench.add(request("long", 3000, 2))
    long = bench.scheduler._queues.find("long")
    assert long is not None

    for number in range(60):
        # More than a step can take, each of them in time.
        bench.add(*(request(f"r{number}.{at}", 30, 2, arrived=bench.now) for at in range(2)))
        bench.step(0.05)
        if long.state != State.WAITING:
            break

    # Four times the target are 8 steps; then it is one of the next seven that start.
    assert 8 <= number <= 8 + 7


# ── what a percentile allows ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("percentile", [1, 50, 90, 99])
def test_an_allowance_is_exceeded_when_more_are_lost_than_the_percentile_leaves(
    percentile: int,
) -> None:
    fair, unfair = ErrorBudget(percentile), ErrorBudget(percentile)
    for number in range(1, 1001):
        for error_budget, lost in ((fair, 100 - percentile), (unfair, 101 - percentile)):
            # Evenly: the last of each few.
            error_budget.note(is_kept=number * lost // 100 == (number - 1) * lost // 100)

    assert not fair.is_exhausted
    assert unfair.is_exhausted


def test_late_prompts_keep_their_position_while_the_error_budget_lasts() -> None:
    error_budget = ErrorBudget(90)
    allowed = LaxityOrder(lambda: TOKEN_S, TTFT_S, error_budget)
    late = prompt(2000, arrived=10.0)
    assert allowed.latest_start(late) == inf

    error_budget.note(is_kept=False)
    assert allowed.latest_start(late) == 11.8


@pytest.mark.parametrize(
    ("percentile", "first"),
    [
        pytest.param(50, "late", id="half of them may be late: it keeps its position"),
        pytest.param(90, "fresh", id="too many are late already: it stands back"),
    ],
)
def test_the_percentile_of_a_ttft_alone_decides_whether_late_prompts_stand_back(
    percentile: int, first: str
) -> None:
    slo = Slo(ttft=LatencyTarget(target="1s", percentile=percentile))
    one_slot = mix(schedule={"max_batch_size": 1})
    bench = Bench(one_slot, request("kept", 16, 1), slo=slo)
    bench.run(1, 0.5)
    bench.add(request("lost", 16, 1, arrived=bench.now))
    bench.run(1, 2.0)

    bench.add(request("running", 16, 2, arrived=bench.now))
    bench.run(1, 0.5)
    bench.add(request("late", 16, 1, arrived=bench.now))
    bench.run(1, 2.0)
    bench.add(request("fresh", 16, 1, arrived=bench.now))

    assert bench.run(1) == [{first: 16}]
