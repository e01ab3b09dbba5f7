"""Number of replicas of a service: its bounds, who sets it, and how fast it may change."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field

from tandem_engine.api.checks import Check, Value, Written
from tandem_engine.api.constraints import TextFormat
from tandem_engine.api.model import Model

MAX_REPLICAS: Final = 1000
"""Replicas of one service at most: each is a worker of one group of Ray's."""

ScalingMode = Literal["Manual", "Recommend", "Auto", "External"]
"""Owner of the number of replicas: people, people with advice, the autoscaler, or another
autoscaler by the scale subresource."""

Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
ReplicasOrZero = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]

_UNITS: Final = {"m": 60, "h": 3600}
_DURATION: Final = TextFormat(
    matches=(r"[1-9][0-9]{0,3}m|[1-9][0-9]{0,2}h",),
    problem="is not a duration; write minutes or hours, such as 90m or 10h",
    longest=8,
)
_TIME_ZONE: Final = TextFormat(
    matches=(r"[A-Za-z][-+_A-Za-z0-9]*(/[A-Za-z][-+_A-Za-z0-9]*){0,2}",),
    problem="is not the name of a time zone; write one such as UTC or Europe/Berlin",
    longest=64,
)


def _entry(value: str) -> str:
    """Return the expression of one part of a cron expression: a list of values and ranges."""
    part = rf"(\*|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return f"{part}(,{part})*"


CRON: Final = TextFormat(
    matches=(
        " ".join(
            (
                _entry("[0-5]?[0-9]"),
                _entry("1?[0-9]|2[0-3]"),
                _entry("0?[1-9]|[12][0-9]|3[01]"),
                _entry("0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"),
                _entry("[0-7]|SUN|MON|TUE|WED|THU|FRI|SAT"),
            )
        ),
    ),
    problem="is not a cron expression; write minute, hour, day of month, month and day of week "
    "with one space between them, such as 0 8 * * MON-FRI",
    longest=128,
)


class ScaleUpSpec(Model):
    """Limits of the autoscaler's additions."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    """Seconds for which more replicas must have been needed before they are added, unless load and
    latencies both ask for them."""

    max_step: Replicas = 4
    """Replicas that may be added within the window, or as many as there are, where that is more."""


class ScaleDownSpec(Model):
    """Limits of the autoscaler's removals."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """Seconds for which fewer replicas must have been enough before one is removed; at least the
    measured cold start."""

    max_step: Replicas = 1
    """Replicas that one decision may remove, or half of them, where that is more."""


class ScalingBehavior(Model):
    """Pace of the autoscaler."""

    scale_up: ScaleUpSpec = ScaleUpSpec()
    """Limits of its additions."""

    scale_down: ScaleDownSpec = ScaleDownSpec()
    """Limits of its removals."""


class ScheduledMinimumSpec(Model):
    """A higher minimum of replicas for some time of the day."""

    start: Annotated[str, AfterValidator(CRON)]
    """Cron expression of the moment at which it begins; replicas start one measured cold start
    earlier."""

    duration: Annotated[str, AfterValidator(_DURATION)]
    """Time for which it holds, in minutes or hours, such as 90m or 10h."""

    time_zone: Annotated[str, AfterValidator(_TIME_ZONE)] = "UTC"
    """Time zone of start, such as Europe/Berlin."""

    min_replicas: Replicas
    """Replicas at least, during that time."""

    @property
    def duration_s(self) -> int:
        """The duration in seconds."""
        return int(self.duration[:-1]) * _UNITS[self.duration[-1]]


class ScalingSpec(Model):
    """Number of replicas, and its owner."""

    mode: ScalingMode = "Manual"
    """Owner of the number of replicas. Manual: replicas is the number; Recommend: so, and the
    autoscaler writes into the status what it would do; Auto: the autoscaler; External: another
    autoscaler, such as an HPA or KEDA, by the scale subresource."""

    replicas: ReplicasOrZero | None = None
    """Replicas that are asked for; the scale subresource writes it. Absent means minReplicas, or
    the number that the autoscaler left. In mode Auto it is only the number to begin with. 0 stops
    the service, and needs minReplicas 0."""

    min_replicas: ReplicasOrZero = 1
    """Replicas at least. 0 allows a service without replicas, which answers requests with 503; in
    mode Auto the first of them starts a replica."""

    max_replicas: Replicas | None = None
    """Replicas at most; modes Recommend and Auto need it."""

    behavior: ScalingBehavior = ScalingBehavior()
    """Pace of the autoscaler."""

    schedule: Annotated[list[ScheduledMinimumSpec], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Minimums by the time of day, in modes Recommend and Auto; the highest active one counts, up
    to maxReplicas."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            field="replicas",
            refused=Written("replicas")
            & Value("replicas").equals(0)
            & ~Value("minReplicas").equals(0),
            problem="replicas 0 is below minReplicas {minReplicas}; set minReplicas: 0, which "
            "allows a service without replicas, or ask for at least one",
        ),
        Check(
            field="maxReplicas",
            refused=Written("maxReplicas") & (Value("maxReplicas") < Value("minReplicas")),
            problem="maxReplicas {maxReplicas} is below minReplicas {minReplicas}; raise "
            "maxReplicas or lower minReplicas",
        ),
        Check(
            field="maxReplicas",
            refused=(Value("mode").equals("Auto") | Value("mode").equals("Recommend"))
            & ~Written("maxReplicas"),
            problem="mode {mode} needs maxReplicas, the most replicas that it may ask for; add it, "
            "or set mode: Manual",
        ),
    )

    @property
    def initial_replicas(self) -> int:
        """Replicas of a service that has no status: those asked for, within the bounds."""
        return self.bounded(self.min_replicas if self.replicas is None else self.replicas)

    @property
    def allows_zero(self) -> bool:
        """True for a service that may be without replicas."""
        return self.min_replicas == 0

    def bounded(self, replicas: int) -> int:
        """Return `replicas` within the bounds."""
        if self.max_replicas is not None:
            replicas = min(replicas, self.max_replicas)
        return max(replicas, self.min_replicas)
