"""Minimums by the time of day."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.scaling_law.schedule import (
    Cron,
    InvalidCron,
    ScheduledMinimum,
    minimum_at,
    parse_cron,
)
from tandem_serve.api.scaling import CRON

BERLIN = ZoneInfo("Europe/Berlin")


def minute_of(text: str) -> int:
    """Return the minutes from 1970 to a moment on the clock on the wall."""
    return int(dt.datetime.fromisoformat(f"{text}+00:00").timestamp()) // 60


def last(cron: Cron, until: str, since: str = "2024-01-01T00:00") -> str | None:
    found = cron.last_minute(minute_of(until), not_before=minute_of(since))
    if found is None:
        return None
    return dt.datetime.fromtimestamp(60 * found, dt.UTC).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 8 * * *", "2026-11-23T08:00"),
        ("0 8 * * MON-FRI", "2026-11-23T08:00"),
        ("0 8 * * 6,0", "2026-11-22T08:00"),
        ("0 8 * * 7", "2026-11-22T08:00"),
        ("*/15 * * * *", "2026-11-23T09:30"),
        ("5/20 8-10/2 * * *", "2026-11-23T08:45"),
        ("30 23 1 JAN *", "2026-01-01T23:30"),
        ("0 0 29 2 *", "2024-02-29T00:00"),
        ("0 0 31 * *", "2026-10-31T00:00"),
        ("0 0 13 * FRI", "2026-11-20T00:00"),
        ("0 0 30 2 *", None),
    ],
)
def test_the_last_moment_of_an_expression(text: str, expected: str | None) -> None:
    """2026-11-23 is a Monday."""
    assert last(parse_cron(text), "2026-11-23T09:41") == expected


@given(st.from_regex(CRON.matches[0], fullmatch=True))
def test_whatever_the_spec_allows_is_a_cron_expression(text: str) -> None:
    cron = parse_cron(text)

    assert cron.minutes_of_day
    assert cron.days
    assert cron.months
    assert cron.weekdays


def test_a_range_may_go_on_at_the_start() -> None:
    cron = parse_cron("50-10/10 22-2 * NOV-JAN FRI-MON")

    assert cron.weekdays == {5, 6, 0, 1}
    assert cron.months == {11, 12, 1}
    assert {minute // 60 for minute in cron.minutes_of_day} == {22, 23, 0, 1, 2}
    assert {minute % 60 for minute in cron.minutes_of_day} == {50, 0, 10}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0 8 * *", "4 fields"),
        ("60 8 * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 8 0 * *", "day of month"),
        ("0 8 * 13 *", "month"),
        ("0 8 * * 8", "day of week"),
        ("0 24-8 * * *", "hour"),
        ("0 18-25 * * *", "hour"),
        ("*/0 * * * *", "step of 0"),
        ("0 8 * * MONDAY", "MONDAY"),
        ("-5 * * * *", "minute"),
        ("1, * * * *", "minute"),
    ],
)
def test_an_error_names_the_wrong_part(text: str, word: str) -> None:
    with pytest.raises(InvalidCron, match=word):
        parse_cron(text)


@given(st.integers(0, 120_000_000))
def test_days_are_those_of_the_calendar(minute: int) -> None:
    moment = dt.datetime.fromtimestamp(60 * minute, dt.UTC)
    weekday = moment.isoweekday() % 7
    for day in (f"{moment.day} {moment.month} *", f"* * {weekday}"):
        cron = parse_cron(f"{moment.minute} {moment.hour} {day}")
        assert cron.last_minute(minute, not_before=minute) == minute


def office(time_zone: str = "Europe/Berlin") -> ScheduledMinimum:
    """Return a minimum of four replicas from 8 to 18 on working days."""
    return ScheduledMinimum(
        cron=parse_cron("0 8 * * MON-FRI"),
        duration_s=10 * 3600.0,
        time_zone=time_zone,
        min_replicas=4,
    )


def minimum(text: str, *schedule: ScheduledMinimum, lead_s: float = 0.0) -> int:
    """Return the minimum at a moment in Berlin."""
    moment = dt.datetime.fromisoformat(text).replace(tzinfo=BERLIN)
    offset = moment.utcoffset()
    assert offset is not None
    offsets = {"Europe/Berlin": offset.total_seconds(), "UTC": 0.0}
    return minimum_at(schedule or (office(),), 1, moment.timestamp(), offsets, lead_s=lead_s)


@pytest.mark.parametrize(
    ("text", "replicas"),
    [
        ("2026-11-23T07:59:59", 1),
        ("2026-11-23T08:00:00", 4),
        ("2026-11-23T17:59:59", 4),
        ("2026-11-23T18:00:00", 1),
        ("2026-11-22T12:00:00", 1),
        ("2026-07-01T08:00:00", 4),
        ("2026-07-01T18:00:00", 1),
    ],
)
def test_a_minimum_holds_for_its_time_summer_and_winter(text: str, replicas: int) -> None:
    assert minimum(text) == replicas


def test_it_begins_a_cold_start_earlier() -> None:
    assert minimum("2026-11-23T07:49:59", lead_s=600.0) == 1
    assert minimum("2026-11-23T07:50:00", lead_s=600.0) == 4
    assert minimum("2026-11-23T18:00:00", lead_s=600.0) == 1


def test_an_hour_that_the_clock_skips_still_begins_its_window() -> None:
    """On 2026-03-29 the clock goes from 2:00 to 3:00."""
    night = ScheduledMinimum(
        cron=parse_cron("30 2 * * *"),
        duration_s=3600.0,
        time_zone="Europe/Berlin",
        min_replicas=3,
    )

    assert minimum("2026-03-29T03:15", night) == 3
    assert minimum("2026-03-29T03:45", night) == 1


def test_the_highest_active_minimum_counts() -> None:
    more = ScheduledMinimum(cron=parse_cron("0 9 * * *"), duration_s=3600.0, min_replicas=6)

    assert minimum("2026-11-23T10:30", office(), more) == 6
    assert minimum("2026-11-23T12:30", office(), more) == 4
    assert minimum_at((), 2, 0.0, {}) == 2
