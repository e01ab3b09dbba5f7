"""The queue of those that wait: its order, skipped sequences, and what it keeps."""

from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.scheduler.group import group_of
from tandem_engine.scheduler.orders import SPLIT_FUSE_ORDERS
from tandem_engine.scheduler.orders.laxity_order import LaxityOrder
from tandem_engine.scheduler.orders.plain_orders import FirstComeFirstServed
from tandem_engine.scheduler.sequence import Sequence, State, first_sequence
from tandem_engine.scheduler.waiting import Waiting
from tests.unit.engine.scheduling import request


def sequence_of(name: str, number: int = 0, *, arrived: float = 0.0, length: int = 5) -> Sequence:
    expected = request(name, length, arrived=arrived)
    return first_sequence(group_of(expected, number=number), block_size=16, keeps_keys=False)


def queue_of(*arrivals: float, policy: int = 0) -> tuple[Waiting, list[Sequence]]:
    waiting = Waiting(SPLIT_FUSE_ORDERS[policy])
    many = [sequence_of(f"r{at}", at, arrived=each) for at, each in enumerate(arrivals)]
    for one in many:
        waiting.push(one)
    return waiting, many


def leave(waiting: Waiting, one: Sequence, state: State = State.ENDED) -> None:
    one.state = state
    waiting.left()


def offered(waiting: Waiting, *, take: str = "", stop: str = "", now: float = 0.0) -> list[str]:
    """Return the offered sequences; those in `take` start, those in `stop` end the offers."""
    asked: list[str] = []

    def ask(one: Sequence) -> bool:
        asked.append(one.sequence_id)
        if one.sequence_id in take.split():
            leave(waiting, one, State.RUNNING)
        return one.sequence_id not in stop.split()

    waiting.offer(ask, now=now, most=100)
    return asked


def test_they_are_offered_in_order_until_one_blocks_the_queue() -> None:
    waiting, _ = queue_of(2.0, 0.0, 1.0)

    assert offered(waiting, take="r1", stop="r2") == ["r1", "r2"]
    assert offered(waiting) == ["r2", "r0"]
    assert len(waiting) == 2


def test_no_single_offer_pays_for_thousands_of_targets_lost_at_the_same_moment() -> None:
    waiting = Waiting(LaxityOrder(lambda: 0.0, ttft_s=1.0))
    early = [sequence_of(f"early{at}", at) for at in range(600)]
    for one in [*early, sequence_of("late", 600, arrived=9.0)]:
        waiting.push(one)

    # At 9 s those that came at 0 have lost theirs: 256 of them are found out by each offer.
    assert offered(waiting, stop="early256", now=9.0) == ["early256"]
    assert offered(waiting, stop="early512", now=9.0) == ["early512"]
    assert offered(waiting, take="late", now=9.0)[:2] == ["late", "early0"]
    assert len(waiting) == 600


def test_an_order_by_arrival_keeps_one_entry_for_each() -> None:
    by_arrival, _ = queue_of(2.0, 0.0, 1.0)
    by_length, _ = queue_of(2.0, 0.0, 1.0, policy=4)

    assert sorted(map(id, by_arrival._heap)) == sorted(map(id, by_arrival._by_age))
    assert not set(map(id, by_length._heap)) & set(map(id, by_length._by_age))


def test_a_skipped_sequence_keeps_its_position() -> None:
    waiting, _ = queue_of(0.0, 1.0, 2.0)

    assert offered(waiting, take="r1") == ["r0", "r1", "r2"]
    assert offered(waiting) == ["r0", "r2"]


def test_no_more_than_so_many_are_skipped() -> None:
    waiting, many = queue_of(*map(float, range(9)))
    asked: list[Sequence] = []

    def skip(one: Sequence) -> bool:
        asked.append(one)
        return True

    waiting.offer(skip, now=0.0, most=3)

    assert asked == many[:3]


def test_equal_arrivals_go_by_their_number() -> None:
    waiting, _ = queue_of(1.0, 1.0, 1.0)

    assert offered(waiting) == ["r0", "r1", "r2"]


def test_the_oldest_is_found_whatever_the_order_of_arrival() -> None:
    waiting, (late, early) = queue_of(1.0, 0.0)

    assert waiting.oldest is early
    leave(waiting, early)
    assert waiting.oldest is late
    leave(waiting, late)
    assert waiting.oldest is None


def test_a_preempted_sequence_is_the_oldest_again() -> None:
    waiting, (first, second) = queue_of(0.0, 1.0)
    leave(waiting, first, State.RUNNING)
    assert waiting.oldest is second
    waiting.push(first)

    assert waiting.oldest is first
    leave(waiting, second)
    assert waiting.oldest is first, "it is found when it is alone, too"


def test_a_later_arrival_counts_once_it_was_changed() -> None:
    waiting, (first, second) = queue_of(0.0, 1.0)
    leave(waiting, first, State.RUNNING)
    first.arrived = 2.0  # it lost its blocks to a claim
    waiting.push(first)

    assert waiting.oldest is second


def test_an_order_that_ages_offers_the_overdue_first_and_once() -> None:
    waiting, many = queue_of(0.0, 5.0, policy=7)
    many[0].num_prompt = 2000
    waiting.reorder(SPLIT_FUSE_ORDERS[7])
    waiting.age_bound_s = 6.0

    assert offered(waiting, now=6.0) == ["r1", "r0"]
    assert offered(waiting, now=6.5) == ["r0", "r1"]
    assert offered(waiting, now=6.5, stop="r0") == ["r0"], "it may hold up all others"


def test_an_order_that_does_not_age_has_none_overdue() -> None:
    waiting, many = queue_of(0.0, 5.0, policy=4)
    many[0].num_prompt = 2000
    waiting.reorder(SPLIT_FUSE_ORDERS[4])
    waiting.age_bound_s = 6.0

    assert offered(waiting, now=1000.0) == ["r1", "r0"]


def test_the_first_is_the_one_that_would_be_offered_first() -> None:
    waiting, many = queue_of(0.0, 5.0, policy=7)
    many[0].num_prompt = 2000
    waiting.reorder(SPLIT_FUSE_ORDERS[7])
    waiting.age_bound_s = 6.0

    assert (waiting.first(6.0), waiting.first(6.5)) == (many[1], many[0])
    leave(waiting, many[1])
    assert waiting.first(6.0) is many[0]


def test_tokens_are_counted_as_far_as_they_are_asked_for() -> None:
    waiting, _ = queue_of(0.0, 1.0, 2.0)  # 5 tokens each

    assert waiting.num_tokens(6) == 10
    assert waiting.num_tokens(1000) == 15


def test_a_beam_that_replaces_another_may_have_its_key() -> None:
    """Beams take over ids and numbers; a key is then no tie-breaker."""
    waiting = Waiting(FirstComeFirstServed())
    old, new = sequence_of("r0"), sequence_of("r0")
    waiting.push(sequence_of("r", 1))
    waiting.push(old)
    leave(waiting, old)
    waiting.push(new)

    assert waiting.oldest is new
    assert offered(waiting) == ["r0", "r"]


def test_a_sequence_that_left_is_not_kept_behind_one_that_waits_for_ever() -> None:
    waiting, _ = queue_of(0.0)
    for at in range(1, 5000):
        one = sequence_of(f"r{at}", at, arrived=float(at))
        waiting.push(one)
        leave(waiting, one)

    assert len(waiting._heap) + len(waiting._by_age) < 200
    assert offered(waiting) == ["r0"]


@given(
    st.sampled_from(sorted(SPLIT_FUSE_ORDERS)),
    st.lists(
        st.tuples(
            st.sampled_from(["push", "leave", "take", "back"]),
            st.integers(0, 20),
            st.integers(1, 9),
        ),
        max_size=60,
    ),
)
def test_it_is_a_sorted_list_whatever_comes(
    policy: int, actions: list[tuple[str, int, int]]
) -> None:
    order = SPLIT_FUSE_ORDERS[policy]
    waiting = Waiting(order)
    model: list[Sequence] = []
    away: list[Sequence] = []
    for at, (action, pick, length) in enumerate(actions):
        if action == "push":
            model.append(sequence_of(f"r{at}", at, arrived=float(pick), length=length))
            waiting.push(model[-1])
        elif action == "back" and away:
            model.append(away.pop(pick % len(away)))
            waiting.push(model[-1])
        elif action == "leave" and model:
            leave(waiting, model.pop(pick % len(model)))
        elif action == "take" and model:
            first = min(model, key=order.key)
            assert waiting.first(0.0) is first
            offered(waiting, take=first.sequence_id, stop=first.sequence_id)
            model.remove(first)
            away.append(first)
        assert len(waiting) == len(model)
        assert waiting.oldest is min(model, key=lambda one: (one.arrived, one.number), default=None)

    in_order = sorted(model, key=order.key)
    assert offered(waiting) == [one.sequence_id for one in in_order]
