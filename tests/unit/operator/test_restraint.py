"""What does not stay as it was written is written ever less."""

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.restraint import REFILL_S, WRITES, Restraint


def spent(generation: int = 1) -> Restraint[str]:
    """All writes of one service are spent, at once."""
    restraint = Restraint[str]()
    for _ in range(WRITES):
        assert restraint.wait_s("a", generation, 0.0) == 0.0
        restraint.note("a", generation, 0.0)
    return restraint


def test_after_a_few_writes_it_waits() -> None:
    assert spent().wait_s("a", 1, 0.0) == REFILL_S
    assert spent().wait_s("a", 1, 10.0) == REFILL_S - 10.0
    assert spent().wait_s("a", 1, REFILL_S) == 0.0


def test_a_new_spec_is_not_held_up() -> None:
    assert spent(generation=1).wait_s("a", 2, 0.0) == 0.0


def test_another_service_is_not_held_up() -> None:
    assert spent().wait_s("b", 1, 0.0) == 0.0


def test_what_is_gone_is_forgotten() -> None:
    restraint = spent()
    restraint.clear("a")

    assert restraint.wait_s("a", 1, 0.0) == 0.0


@given(st.lists(st.floats(0, 30), max_size=200))
def test_a_fight_is_never_more_than_a_write_a_minute(pauses: list[float]) -> None:
    restraint, now, written = Restraint[str](), 0.0, 0
    for pause in pauses:
        now += pause
        if restraint.wait_s("a", 1, now) == 0.0:
            restraint.note("a", 1, now)
            written += 1

    assert written <= WRITES + now / REFILL_S + 1e-6
