"""Objects that another writer changes back are written ever less."""

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.reconcile.service_state import REFILL_S, WRITES, WriteLimit


def spent(generation: int = 1) -> WriteLimit:
    """All writes of one service are spent, at once."""
    limit = WriteLimit()
    for _ in range(WRITES):
        assert limit.wait_s(generation, 0.0) == 0.0
        limit.take(generation, 0.0)
    return limit


def test_after_a_few_writes_it_waits() -> None:
    assert spent().wait_s(1, 0.0) == REFILL_S
    assert spent().wait_s(1, 10.0) == REFILL_S - 10.0
    assert spent().wait_s(1, REFILL_S) == 0.0


def test_a_new_spec_is_not_blocked() -> None:
    assert spent(generation=1).wait_s(2, 0.0) == 0.0


def test_a_new_number_of_replicas_is_not_blocked() -> None:
    limit = WriteLimit()
    for _ in range(WRITES):
        limit.take((1, 2), 0.0)

    assert limit.wait_s((1, 2), 0.0) > 0.0
    assert limit.wait_s((1, 3), 0.0) == 0.0


@given(st.lists(st.floats(0, 30), max_size=200))
def test_a_fight_is_never_more_than_a_write_a_minute(pauses: list[float]) -> None:
    limit, now, written = WriteLimit(), 0.0, 0
    for pause in pauses:
        now += pause
        if limit.wait_s(1, now) == 0.0:
            limit.take(1, now)
            written += 1

    assert written <= WRITES + now / REFILL_S + 1e-6
