"""Wall-clock time as Kubernetes writes it: RFC 3339, UTC, whole seconds."""

import datetime as dt


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
