"""Headroom of the load: for one that rises, until it falls."""

from typing import Any

from tests.unit.operator.scaling_law.measurements import POLICY, Loop, observed, tpot, ttft


def test_headroom_is_for_a_load_that_rises_and_what_it_got_it_keeps() -> None:
    """30·1.25/10 = 3.75 while 30 are new, 30/10 = 3 once they were there."""
    rising, known = Loop(), Loop()
    rising.run(observed(3), seconds=300)
    known.run(observed(3, arrival_rate=30.0), seconds=15)
    known.steps(observed(3, arrival_rate=21.0), seconds=600)

    assert rising.step(observed(3, arrival_rate=30.0)).inputs["needed"] == 4
    assert known.step(observed(3, arrival_rate=30.0)).inputs["needed"] == 3
    assert known.steps(observed(4, arrival_rate=30.0), seconds=1800)[-1].desired == 4
    assert known.steps(observed(4, arrival_rate=24.0), seconds=1800)[-1].desired == 3


def test_a_load_that_has_fallen_gives_its_headroom_back() -> None:
    """27·1.25/10 = 3.4, 27·1.1/10 = 2.97."""
    light: dict[str, Any] = {"ttft": ttft(0.35), "tpot": tpot(0.045), "kv_usage": 0.2}
    steady, fallen = Loop(), Loop()
    fallen.step(observed(4, arrival_rate=33.0, **light))

    for loop, desired in ((steady, 4), (fallen, 3)):
        assert loop.steps(observed(4, arrival_rate=27.0, **light), 1800)[-1].desired == desired


def test_a_load_is_new_again_when_it_was_long_ago() -> None:
    loop = Loop()
    loop.step(observed(3, arrival_rate=30.0))
    loop.steps(observed(3, arrival_rate=21.0), seconds=POLICY.known_s)

    assert loop.step(observed(3, arrival_rate=30.0)).inputs["headroom"] == POLICY.headroom
