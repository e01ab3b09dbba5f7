"""The orders of starts, by each value of each policy; cases worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.request import Request
from tandem_engine.scheduler.group import group_of
from tandem_engine.scheduler.orders import SPLIT_FUSE_ORDERS, STAGE_ORDERS, Order
from tandem_engine.scheduler.orders.mlfq import level_of
from tandem_engine.scheduler.orders.order import MAX_PREEMPTIONS
from tandem_engine.scheduler.sequence import Sequence, State, first_sequence
from tests.unit.engine.scheduling import Bench, mix, request, standard

ORDERS = {**STAGE_ORDERS, **SPLIT_FUSE_ORDERS}


def sequence_of(expected: Request, number: int = 0) -> Sequence:
    return first_sequence(group_of(expected, number=number), block_size=16, keeps_keys=False)


def started(bench: Bench, count: int) -> list[str]:
    """The ids in the order in which they began, one a step."""
    seen: list[str] = []
    for _ in range(400):
        seen += [each for each in bench.step().step.sequence_ids if each not in seen]
        if len(seen) == count:
            return seen
    raise AssertionError(f"of {count}, {seen} have begun")


def one_by_one() -> dict[str, int]:
    return {"max_batch_size": 1, "max_prefill_batch_size": 1}


FOUR = (
    request("a", 30, 2, arrived=0.0, priority=4),
    request("b", 10, 2, arrived=0.125, priority=5),
    request("c", 40, 2, arrived=0.25, priority=1),
    request("d", 20, 2, arrived=0.375, priority=1),
)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param(0, "abcd", id="0: by arrival"),
        pytest.param(4, "bdac", id="4: 10, 20, 30, 40 tokens"),
        pytest.param(5, "cadb", id="5: the other way round"),
        pytest.param(6, "abcd", id="6: all are of the first level"),
        pytest.param(7, "bdac", id="7: the shortest first inside a level"),
    ],
)
def test_policy_type_orders_the_mixed_batch(policy: int, order: str) -> None:
    bench = Bench(mix(64, policy_type=policy, schedule=one_by_one()), *FOUR)
    bench.now = 0.5

    assert started(bench, 4) == list(order)


@pytest.mark.parametrize("template", ["Standard", "Mix"])
@pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param(0, "abcd", id="0: by arrival"),
        pytest.param(1, "abcd", id="1: none was preempted"),
        pytest.param(2, "cdab", id="2: priorities 1, 1, 4, 5"),
        pytest.param(3, "abcd", id="3: none has had anything"),
    ],
)
def test_prefill_policy_type_orders_the_waiting(template: str, policy: int, order: str) -> None:
    given_all = {"prefill_policy_type": policy, **one_by_one()}
    schedule = mix(64, schedule=given_all) if template == "Mix" else standard(**given_all)
    bench = Bench(schedule, *FOUR)
    bench.now = 0.5

    assert started(bench, 4) == list(order)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # 1030 > 1024 is of the second level, 4100 > 4096 of the third.
        pytest.param(6, ["small", "tiny", "middle", "large"], id="6: FCFS inside a level"),
        pytest.param(7, ["tiny", "small", "middle", "large"], id="7: the shortest first"),
    ],
)
def test_a_prompt_joins_the_level_that_it_will_come_to(policy: int, order: list[str]) -> None:
    many = [
        request(name, length, 1)
        for name, length in (("large", 4100), ("middle", 1030), ("small", 1024), ("tiny", 5))
    ]
    schedule = mix(8192, policy_type=policy, schedule=one_by_one())
    bench = Bench(schedule, *many, num_blocks=300)

    assert started(bench, 4) == order


@pytest.mark.parametrize(
    ("num_tokens", "level"), [(0, 0), (1024, 0), (1025, 1), (4096, 1), (4097, 2)]
)
def test_levels(num_tokens: int, level: int) -> None:
    assert level_of(num_tokens) == level


@pytest.mark.parametrize(
    ("name", "value", "order"),
    [
        pytest.param("num_preempted", 1, 1, id="STATE puts the preempted behind"),
        pytest.param("num_attained", 1025, 3, id="MLFQ lets it sink to the second level"),
        pytest.param("num_attained", 1025, 6, id="skip-join MLFQ too"),
        pytest.param("num_attained", 1025, 7, id="and MLFQ with the shortest job first"),
    ],
)
def test_the_older_one_falls_behind(name: str, value: int, order: int) -> None:
    older = sequence_of(request("older", 5), 0)
    younger = sequence_of(request("younger", 5, arrived=1.0), 1)
    key = ORDERS[order].key

    assert key(older) < key(younger)
    setattr(older, name, value)
    assert key(older) > key(younger)
    assert STAGE_ORDERS[0].key(older) < STAGE_ORDERS[0].key(younger), "FCFS is FCFS"


@pytest.mark.parametrize(("num_preempted", "victim"), [(1, "older"), (MAX_PREEMPTIONS, "younger")])
def test_who_has_lost_blocks_often_enough_keeps_them(num_preempted: int, victim: str) -> None:
    """By state the younger one goes first, which was never preempted."""
    bench = Bench(
        standard(decode_policy_type=1),
        request("older", 31, 40),
        request("younger", 31, 40, arrived=0.125),
        num_blocks=5,
    )
    bench.step()
    older = bench.scheduler._queues.find("older")
    assert older is not None
    older.num_preempted = num_preempted

    steps = (bench.step().step for _ in range(40))
    preempted = next(list(step.preempted) for step in steps if step.preempted)

    assert preempted == [victim]


def test_inside_a_level_running_goes_before_swapped_and_waiting() -> None:
    key = STAGE_ORDERS[3].key
    states = [State.WAITING, State.SWAPPED, State.RUNNING]
    many = [sequence_of(request(each.name, 5), at) for at, each in enumerate(states)]
    for one, state in zip(many, states, strict=True):
        one.state = state

    assert [one.sequence_id for one in sorted(many, key=key)] == ["RUNNING", "SWAPPED", "WAITING"]


@pytest.mark.parametrize("policy", [6, 7])
def test_a_sequence_that_is_skipped_for_too_long_goes_first(policy: int) -> None:
    """Four times prefillExpectedTime, in virtual time."""
    given_all = one_by_one() | {"prefill_expected_time": 1000}
    bench = Bench(mix(2048, policy_type=policy, schedule=given_all), num_blocks=200)
    bench.add(request("long", 1030, 1))
    began_at: list[float] = []
    for at in range(40):
        # A short one always waits: it would go first at every step.
        bench.add(request(f"s{at}", 5, 1, arrived=bench.now))
        moment = bench.now
        if "long" in bench.step().step.sequence_ids:
            began_at.append(moment)

    assert began_at == [4.25]  # the first step later than 4 s


@pytest.mark.parametrize("policy", [4, 5])
def test_orders_by_size_alone_do_not_age(policy: int) -> None:
    """The manual warns of it: long inputs may starve under shortest job first."""
    bench = Bench(mix(64, policy_type=policy, schedule=one_by_one()))
    bench.add(request("passed", 20, 1))
    for at in range(60):
        bench.add(request(f"s{at}", 5 if policy == 4 else 40, 1, arrived=bench.now))
        assert "passed" not in bench.step().step.sequence_ids


def test_a_claim_on_blocks_does_not_make_the_order_by_priority_age() -> None:
    """With maxFirstTokenWaitTime some give up blocks, and better priorities get them."""
    settings = {"max_first_token_wait_time": 0, "prefill_policy_type": 2, "max_batch_size": 3}
    bench = Bench(mix(16, schedule=settings), num_blocks=6)
    bench.add(request("passed", 40, 1, priority=5))
    num_preempted = 0
    for at in range(60):
        bench.add(request(f"s{at}", 30, 12, priority=1, arrived=bench.now))
        step = bench.step().step
        num_preempted += len(step.preempted)
        assert "passed" not in step.sequence_ids
    assert num_preempted


attributes = st.fixed_dictionaries(
    {
        "num_preempted": st.integers(0, 3),
        "num_attained": st.integers(0, 6000),
        "state": st.sampled_from([State.WAITING, State.RUNNING, State.SWAPPED]),
    }
)


@given(
    st.sampled_from(sorted(ORDERS)),
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 5), st.sampled_from([0.0, 1.0]), attributes),
        min_size=2,
        max_size=6,
    ),
)
def test_no_two_sequences_have_the_same_key(
    policy: int, many: list[tuple[int, int, float, dict[str, int]]]
) -> None:
    order: Order = ORDERS[policy]
    keys = []
    for at, (length, priority, arrived, values) in enumerate(many):
        one = sequence_of(request(f"r{at}", length, priority=priority, arrived=arrived), at)
        for name, value in values.items():
            setattr(one, name, value)
        keys.append(order.key(one))

    assert len(set(keys)) == len(keys)


@given(
    st.sampled_from(sorted(ORDERS)), st.integers(0, 5000), st.integers(0, 500), st.integers(0, 2)
)
def test_a_key_never_falls_while_a_sequence_is_served(
    policy: int, attained: int, more: int, preempted: int
) -> None:
    """Or two sequences could take each other's blocks for ever."""
    one = sequence_of(request("a", 20))
    one.state = State.RUNNING
    one.num_attained, one.num_preempted = attained, preempted
    before = ORDERS[policy].key(one)
    one.num_attained += more
    one.num_preempted += more % 2

    assert ORDERS[policy].key(one) >= before
