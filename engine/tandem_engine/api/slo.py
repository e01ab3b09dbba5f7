"""Service level objectives: the latency targets of a service."""

import re
from decimal import Decimal
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field

from tandem_engine.api.constraints import TextFormat
from tandem_engine.api.model import Model

_DURATION: Final = r"(?P<number>[0-9]{1,7}(\.[0-9]{1,3})?)(?P<unit>ms|s)"
_DURATION_FORMAT: Final = TextFormat(
    matches=(_DURATION,),
    problem="is not a duration; write a number of up to 7 digits (and 3 behind the point) and a "
    "unit, s or ms, such as 500ms or 1.5s",
    longest=16,
)
_POSITIVE: Final = TextFormat(
    excludes=(r"0+(\.0+)?(ms|s)",),
    problem="is not a positive duration; give more than 0, such as 50ms",
)
_DECIMALS: Final = {"ms": -3, "s": 0}


DEFAULT_PERCENTILE: Final = 90
"""Share of the requests, in percent, that keeps a target which says nothing else."""


class LatencyTarget(Model):
    """A latency that a share of all requests stays below."""

    percentile: Annotated[int, Field(ge=1, le=99)] = DEFAULT_PERCENTILE
    """Share of requests, in percent, that keep it."""

    target: Annotated[str, AfterValidator(_DURATION_FORMAT), AfterValidator(_POSITIVE)]
    """The latency, such as 500ms or 1.5s."""

    @property
    def target_s(self) -> float:
        """The latency in seconds."""
        return seconds(self.target)

    def resolved(self) -> Self:
        """Return the same target in milliseconds: 0.5s and 500ms are written alike."""
        return self.model_copy(update={"target": _in_milliseconds(self.target)})


class Slo(Model):
    """The latency targets of every request."""

    ttft: LatencyTarget | None = None
    """From the arrival of a request to its first token."""

    tpot: LatencyTarget | None = None
    """From token to token, as a mean over each request."""

    @property
    def is_given(self) -> bool:
        """True if there is any latency target."""
        return self.ttft is not None or self.tpot is not None

    @property
    def ttft_s(self) -> float | None:
        """The TTFT target in seconds; None: there is none."""
        return None if self.ttft is None else self.ttft.target_s

    @property
    def tpot_s(self) -> float | None:
        """The TPOT target in seconds; None: there is none."""
        return None if self.tpot is None else self.tpot.target_s

    def resolved(self) -> Self:
        """Return the same targets, each in milliseconds."""
        return self.model_copy(
            update={
                "ttft": self.ttft and self.ttft.resolved(),
                "tpot": self.tpot and self.tpot.resolved(),
            }
        )


def seconds(duration: str) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: it is not a duration.
    """
    match = _parts(duration)
    # 9ms is 0.009, as it stands in metrics, and not 9 · 0.001 = 0.009000000000000001.
    return float(Decimal(match["number"]).scaleb(_DECIMALS[match["unit"]]))


def _in_milliseconds(duration: str) -> str:
    match = _parts(duration)
    # Decimal fractions, not binary ones: 1.1s is 1100ms, to the last digit.
    number = Decimal(match["number"]) * (1000 if match["unit"] == "s" else 1)
    return f"{number.normalize():f}ms"


def _parts(duration: str) -> re.Match[str]:
    match = re.fullmatch(_DURATION, duration)
    if match is None:
        raise ValueError(_DURATION_FORMAT.sentence(duration))
    return match
