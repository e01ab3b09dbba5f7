"""Options of the command line, checked and frozen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.case import Case
from benchmarks.serving.errors import WrongUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The requests to send, and their times.

    Raises:
        WrongUsage: two of them contradict each other, or one is out of its range.
    """

    cases: Sequence[Case] = ()
    trace: Path | None = None
    speed: float = 1.0
    """Arrivals of the trace come so many times as fast."""
    limit: int | None = None
    """Rows of the trace that are taken."""
    rate: float | None = None
    """Arrivals a second; None is a closed loop."""
    num_requests: int | None = None
    """Requests of each case; None leaves it to `duration_s`."""
    duration_s: float = 20.0
    num_warmup: int | None = None
    """Requests before each case that are not counted; None is as many as run together."""
    seed: int = 0
    """Decides the arrivals. Prompts are new in every run: no prefix cache may know them."""

    def __post_init__(self) -> None:
        if bool(self.cases) == (self.trace is not None):
            raise WrongUsage(
                "Give --case or --trace, such as --case 16x256x64; a trace has its own lengths."
            )
        if self.trace is not None and (self.rate is not None or self.num_requests is not None):
            raise WrongUsage("A trace has its own arrivals; use --speed and --limit with it.")
        if self.trace is None and (self.speed != 1 or self.limit is not None):
            raise WrongUsage("--speed and --limit go with --trace.")
        _check_positive("--rate", self.rate, may_be_infinite=True)
        _check_positive("--duration", self.duration_s)
        _check_positive("--speed", self.speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTargets:
    """Latency targets of a request; None: no target."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        _check_positive("--ttft-ms", self.ttft_ms)
        _check_positive("--tpot-ms", self.tpot_ms)

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """The server to measure, and how to reach it."""

    url: str | None
    """None: a service of `manifest` is started for the benchmark."""
    manifest: Path
    model: str | None = None
    """None: the first that the server lists."""
    api_key: str | None = None
    token_ids: tuple[int, int] | None = None
    """First and last token id of prompts; None asks the server's tokenizer for ordinary ones."""
    timeout_s: float = 600.0
    """Longest time from sending a request to the end of its answer."""


def _check_positive(name: str, value: float | None, *, may_be_infinite: bool = False) -> None:
    if value is None or (value > 0 and (may_be_infinite or math.isfinite(value))):
        return
    raise WrongUsage(f"{name} is {value:g}; it must be more than 0.")


def parse_token_ids(text: str) -> tuple[int, int]:
    """The range that `text` writes as FIRST-LAST.

    Raises:
        WrongUsage: it is not written so.
    """
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
        raise WrongUsage(
            f"'{text}' is not a range of token ids; write FIRST-LAST, such as 100-999."
        )
    return int(first), int(last)
