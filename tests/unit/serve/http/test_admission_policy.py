import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_serve.api.slots import max_in_flight
from tandem_serve.http.admission.policy import (
    Admitted,
    Refused,
    admit,
    estimate_retry_after,
)


@pytest.mark.parametrize(
    ("num_in_flight", "num_new", "is_admitted"),
    [
        pytest.param(0, 1, True, id="the first is processed"),
        pytest.param(4, 1, True, id="after N, one waits"),
        pytest.param(11, 1, True, id="number 3N gets the last slot"),
        pytest.param(12, 1, False, id="number 3N + 1 is refused"),
        pytest.param(10, 2, True, id="two fit into two slots"),
        pytest.param(11, 2, False, id="two do not share one slot"),
    ],
)
def test_three_times_max_link_num_are_let_in(
    num_in_flight: int, num_new: int, is_admitted: bool
) -> None:
    admission = admit(num_in_flight=num_in_flight, num_new=num_new, max_link_num=4)

    assert isinstance(admission, Admitted) is is_admitted


@pytest.mark.parametrize(
    ("num_missing", "completions_per_s", "expected_s"),
    [
        pytest.param(1, 0.0, 5, id="nothing has ended yet: a guess"),
        pytest.param(1, 100.0, 1, id="never less than a second"),
        pytest.param(3, 2.0, 2, id="rounded up to whole seconds"),
        pytest.param(10, 0.5, 20, id="as long as the slots take to become free"),
        pytest.param(1, 0.001, 60, id="never more than a minute"),
        pytest.param(1, 5e-324, 60, id="a rate next to nothing does not overflow"),
    ],
)
def test_retry_after_follows_the_rate(
    num_missing: int, completions_per_s: float, expected_s: int
) -> None:
    assert estimate_retry_after(num_missing, completions_per_s) == expected_s


def test_a_refusal_has_the_numbers() -> None:
    admission = admit(num_in_flight=3, num_new=2, max_link_num=1, completions_per_s=0.5)

    assert admission == Refused(num_in_flight=3, max_in_flight=3, retry_after_s=4)


@given(
    num_in_flight=st.integers(0, 20_000),
    num_new=st.integers(1, 500),
    max_link_num=st.integers(1, 4096),
    completions_per_s=st.floats(0.0, 1e9),
)
def test_the_limit_is_never_passed(
    num_in_flight: int, num_new: int, max_link_num: int, completions_per_s: float
) -> None:
    admission = admit(
        num_in_flight=num_in_flight,
        num_new=num_new,
        max_link_num=max_link_num,
        completions_per_s=completions_per_s,
    )

    match admission:
        case Admitted():
            assert num_in_flight + num_new <= max_in_flight(max_link_num)
        case Refused(retry_after_s=retry_after_s):
            assert num_in_flight + num_new > max_in_flight(max_link_num)
            assert 1 <= retry_after_s <= 60
