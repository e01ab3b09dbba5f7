"""Time zones: their offset from UTC at a moment."""

import pytest

from tandem_operator.clock import UnknownTimeZone, utc_offset_s

WINTER_S = 1_795_000_000.0  # 2026-11-18
SUMMER_S = 1_782_000_000.0  # 2026-06-21


@pytest.mark.parametrize(
    ("time_zone", "unix_s", "hours"),
    [
        ("UTC", WINTER_S, 0.0),
        ("Europe/Berlin", WINTER_S, 1.0),
        ("Europe/Berlin", SUMMER_S, 2.0),
        ("Asia/Kolkata", WINTER_S, 5.5),
        ("America/New_York", WINTER_S, -5.0),
    ],
)
def test_the_offset_of_a_zone_follows_its_summer_time(
    time_zone: str, unix_s: float, hours: float
) -> None:
    assert utc_offset_s(time_zone, unix_s) == 3600 * hours


@pytest.mark.parametrize("time_zone", ["Europe/Nowhere", "", "../etc/passwd", "Europe", "\0"])
def test_an_unknown_zone_is_an_error_that_names_it(time_zone: str) -> None:
    with pytest.raises(UnknownTimeZone, match="not a known time zone"):
        utc_offset_s(time_zone, WINTER_S)
