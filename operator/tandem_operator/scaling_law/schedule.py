"""Minimums by the time of day: cron expressions with a time zone; pure.

No cron library is used: their hard part is the search for the next moment, and here the question is
only for the last one, which wall-clock arithmetic answers. The shell gives the offset of each time
zone from UTC, since that needs a database of zones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_DURATION_S: Final = 31 * 86_400

_DAY: Final = 1440
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN")
_MONTHS_2: Final = ("JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class InvalidCron(ValueError):
    """A text is no cron expression; the message names its wrong part."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    cycle: int
    words: Mapping[str, int] = {}


_FIELDS: Final = (
    _Field("minute", 0, 59, 60),
    _Field("hour", 0, 23, 24),
    _Field("day of month", 1, 31, 31),
    _Field("month", 1, 12, 12, {word: 1 + i for i, word in enumerate((*_MONTHS, *_MONTHS_2))}),
    _Field("day of week", 0, 7, 7, {word: i for i, word in enumerate(_DAYS)}),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed cron expression of five fields, as in cron(8)."""

    minutes_of_day: tuple[int, ...]
    """Minutes since midnight, in order."""

    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""

    takes_either: bool
    """True when day of month and day of week are both restricted: then one of them is enough."""

    def last_minute(self, minute: int, *, not_before: int) -> int | None:
        """Return the newest match from `not_before` to `minute`; None: there is none.

        Minutes count from 1970-01-01T00:00 on the clock on the wall.
        """
        for day in range(minute // _DAY, not_before // _DAY - 1, -1):
            if not self._has_day(day):
                continue
            start = day * _DAY
            starts = [start + offset for offset in self.minutes_of_day if start + offset <= minute]
            if starts:
                return starts[-1] if starts[-1] >= not_before else None
        return None

    def _has_day(self, day: int) -> bool:
        month, day_of_month = _month_and_day(day)
        if month not in self.months:
            return False
        # 1970-01-01 was a Thursday.
        by_date, by_weekday = day_of_month in self.days, (day + 4) % 7 in self.weekdays
        return by_date or by_weekday if self.takes_either else by_date and by_weekday


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledMinimum:
    """A minimum of replicas for some time after each moment of a cron expression."""

    cron: Cron
    duration_s: float
    """Seconds on the clock on the wall, so a window that ends at 18:00 does so on every day."""

    time_zone: str = "UTC"
    min_replicas: int

    def is_active(self, now_s: float, utc_offset_s: float, lead_s: float = 0.0) -> bool:
        """Return True within the time; it begins `lead_s` earlier, for replicas to start."""
        # A minute that began is due: parts of minutes count at both ends.
        local_s = now_s + utc_offset_s
        newest = int((local_s + lead_s) // 60)
        last = self.cron.last_minute(newest, not_before=int((local_s - self.duration_s) // 60))
        return last is not None and local_s < last * 60 + self.duration_s


def minimum_at(
    schedule: Iterable[ScheduledMinimum],
    base: int,
    now_s: float,
    utc_offsets_s: Mapping[str, float],
    *,
    lead_s: float = 0.0,
) -> int:
    """Return the highest of `base` and the minimums that are active at `now_s`, in Unix time.

    `lead_s` is the measured cold start: replicas are there when the time begins.
    """
    active = (
        entry.min_replicas
        for entry in schedule
        if entry.is_active(now_s, utc_offsets_s[entry.time_zone], lead_s)
    )
    return max((base, *active))


def parse_cron(text: str) -> Cron:
    """Return the parsed form of minute, hour, day of month, month and day of week.

    Raises:
        InvalidCron: the text is no such expression.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise InvalidCron(
            f"'{text}' has {len(parts)} fields; a cron expression has 5: minute, hour, day of "
            "month, month, day of week"
        )
    minutes, hours, days, months, weekdays = (
        _values(part, field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    return Cron(
        minutes_of_day=tuple(sorted(60 * hour + minute for hour in hours for minute in minutes)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        takes_either=not (parts[2].startswith("*") or parts[4].startswith("*")),
    )


def _values(text: str, field: _Field) -> frozenset[int]:
    return frozenset(value for part in text.split(",") for value in _range(part, field))


def _range(text: str, field: _Field) -> Iterable[int]:
    """Return the values of one entry; 7 is Sunday, too, so `*` has it twice."""
    body, slash, step_text = text.partition("/")
    step = _number(step_text, field, text) if slash else 1
    if step < 1:
        raise InvalidCron(f"'{text}' of the {field.name} has a step of 0; write 1 or more")
    if body == "*":
        low, high = field.low, field.high
    else:
        first, dash, last = body.partition("-")
        low = _number(first, field, text)
        high = _number(last, field, text) if dash else field.high if slash else low
    if not (field.low <= low <= field.high and field.low <= high <= field.high):
        raise InvalidCron(f"'{text}' is no {field.name}; it is {field.low} to {field.high}")
    if low <= high:
        return range(low, high + 1, step)
    # FRI-MON goes on at the start of the week.
    wrapped = range(low, high + field.cycle + 1, step)
    return [field.low + (value - field.low) % field.cycle for value in wrapped]


def _number(text: str, field: _Field, part: str) -> int:
    if text.upper() in field.words:
        return field.words[text.upper()]
    if not (text.isascii() and text.isdigit()):
        raise InvalidCron(
            f"'{part}' is no {field.name}; write *, a number, a range such as 1-5, a list or */5"
        )
    return int(text)


def _month_and_day(day: int) -> tuple[int, int]:
    """Return month and day of month of a day since 1970-01-01, by the Gregorian calendar."""
    # Years begin in March, so that a leap day is the last one; eras have 400 years.
    era_day = (day + 719_468) % 146_097
    year = (era_day - era_day // 1460 + era_day // 36_524 - era_day // 146_096) // 365
    year_day = era_day - (365 * year + year // 4 - year // 100)
    month = (5 * year_day + 2) // 153
    return (month + 2) % 12 + 1, year_day - (153 * month + 2) // 5 + 1
