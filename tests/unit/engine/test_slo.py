"""Latency targets of a service."""

import pytest
from pydantic import ValidationError

from tandem_engine.api.slo import LatencyTarget, Slo, seconds


@pytest.mark.parametrize(
    ("duration", "in_seconds", "in_milliseconds"),
    [
        ("500ms", 0.5, "500ms"),
        ("0.5s", 0.5, "500ms"),
        ("1.1s", 1.1, "1100ms"),
        ("050ms", 0.05, "50ms"),
        ("0.125ms", 0.000125, "0.125ms"),
        ("1000000s", 1e6, "1000000000ms"),
    ],
)
def test_a_duration_is_a_number_and_a_unit(
    duration: str, in_seconds: float, in_milliseconds: str
) -> None:
    latency = LatencyTarget(target=duration)

    assert latency.target_s == pytest.approx(in_seconds)
    assert latency.resolved().target == in_milliseconds


@pytest.mark.parametrize("text", ["50", "ms", "-1s", "1 s", "1.s", "1.0000s", "1m", "12345678ms"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not a duration; .* such as 500ms or 1.5s"):
        seconds(text)


@pytest.mark.parametrize("text", ["0s", "0.000ms", "000ms"])
def test_nothing_is_there_in_no_time(text: str) -> None:
    with pytest.raises(ValidationError, match=f"'{text}' is not a positive duration; give"):
        LatencyTarget(target=text)


@pytest.mark.parametrize("percentile", [0, 100])
def test_a_percentile_lies_between_none_and_all(percentile: int) -> None:
    with pytest.raises(ValidationError, match=f"input_value={percentile}"):
        LatencyTarget(target="1s", percentile=percentile)


def test_there_is_no_target_unless_it_is_written() -> None:
    assert (Slo().ttft_s, Slo().tpot_s) == (None, None)
    assert Slo(tpot=LatencyTarget(target="50ms")).tpot_s == pytest.approx(0.05)
    assert LatencyTarget(target="50ms").percentile == 90
