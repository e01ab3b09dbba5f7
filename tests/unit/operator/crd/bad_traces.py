"""Traces that cannot be sent."""

from collections.abc import Iterator
from typing import Any

from tests.unit.operator.crd.forms import TRACING, Bad, wrong_value

_GOOD = "http://collector:4318"


def bad_traces() -> Iterator[Bad]:
    """One for every rule, and for every way to write a receiver that is none."""
    for endpoint in (
        "collector:4318",
        "grpc://collector:4317",
        "http://",
        "http://user:password@collector:4318",
        "http://collector:4318/?a=b",
        "http://collector:4318/#a",
        "http://collector :4318",
        "http://collector:0",
        "http://collector:65536",
        "http://a:b",
        "http://:4318",
        "http://collector:4318\n",
    ):
        yield wrong_value(f"{TRACING}.endpoint", endpoint, "is not the URL of a collector; write")
    yield Bad(
        "traces without a receiver",
        {TRACING: {}},
        f"{TRACING}.endpoint",
        "Required value",
        "is missing",
    )
    yield _ratio(1.5, "less than or equal to 1", "allowed: 0 to 1")
    yield _ratio(-0.5, "greater than or equal to 0", "allowed: 0 to 1")
    yield _ratio("0.5", "must be of type number", "expected a number")


def _ratio(value: Any, words: str, told: str) -> Bad:
    return Bad(
        f"the share {value!r} of the requests",
        {TRACING: {"endpoint": _GOOD, "sampleRatio": value}},
        f"{TRACING}.sampleRatio",
        words,
        told,
    )
