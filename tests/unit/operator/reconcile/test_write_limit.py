"""Objects that another writer changes back are written ever less."""

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.reconcile.write_limit import REFILL_S, WRITES, WriteLimit


def spent(generation: int = 1) -> WriteLimit[str]:
    """All writes of one service are spent, at once."""
    limit = WriteLimit[str]()
    for _ in range(WRITES):
        assert limit.wait_s("a", generation, 0.0) == 0.0
        limit.take("a", generation, 0.0)
    return limit


def test_after_a_few_writes_it_waits() -> None:
    assert spent().wait_s("a", 1, 0.0) == REFILL_S
    assert spent().wait_s("a", 1, 10.0) == REFILL_S - 10.0
    assert spent().wait_s("a", 1, REFILL_S) == 0.0


def test_a_new_spec_is_not_blocked() -> None:
    assert spent(generation=1).wait_s("a", 2, 0.0) == 0.0


def test_a_new_number_of_replicas_is_not_blocked() -> None:
    limit = WriteLimit[str]()
    for _ in range(WRITES):
        limit.take("a", (1, 2), 0.0)

    assert limit.wait_s("a", (1, 2), 0.0) > 0.0
    assert limit.wait_s("a", (1, 3), 0.0) == 0.0


def test_another_service_is_not_blocked() -> None:
    assert spent().wait_s("b", 1, 0.0) == 0.0


def test_what_is_gone_is_forgotten() -> None:
    limit = spent()
    limit.forget("a")

    assert limit.wait_s("a", 1, 0.0) == 0.0


@given(st.lists(st.floats(0, 30), max_size=200))
def test_a_fight_is_never_more_than_a_write_a_minute(pauses: list[float]) -> None:
    limit, now, written = WriteLimit[str](), 0.0, 0
    for pause in pauses:
        now += pause
        if limit.wait_s("a", 1, now) == 0.0:
            limit.take("a", 1, now)
            written += 1

    assert written <= WRITES + now / REFILL_S + 1e-6
