"""Wall-clock time as Kubernetes writes it: RFC 3339, UTC, whole seconds; and time zones."""

import datetime as dt
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class UnknownTimeZone(ValueError):
    """A name of no known time zone."""


def now_text() -> str:
    """This moment, such as 2026-11-21T14:00:00Z."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro_text() -> str:
    """This moment with microseconds, as a Lease has it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one moment to another."""
    first, second = (dt.datetime.fromisoformat(text) for text in (earlier, later))
    return (second - first).total_seconds()


def utc_offset_s(time_zone: str, unix_s: float) -> float:
    """Seconds that a time zone is ahead of UTC at a moment.

    Raises:
        UnknownTimeZone: the machine's database of zones has no such one.
    """
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnknownTimeZone(
            f"'{time_zone}' is not a known time zone; write a name of the IANA database, such as "
            "Europe/Berlin or UTC"
        ) from error
    offset = dt.datetime.fromtimestamp(unix_s, zone).utcoffset() or dt.timedelta()
    return offset.total_seconds()


def to_unix_s(text: str) -> float:
    """Return the Unix time of a moment such as 2026-11-21T14:00:00Z."""
    return dt.datetime.fromisoformat(text).timestamp()


def from_unix_s(unix_s: float) -> str:
    """Return the moment of a Unix time, such as 2026-11-21T14:00:00Z."""
    return dt.datetime.fromtimestamp(unix_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
